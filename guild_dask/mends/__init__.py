"""What makes guildai 0.9.0 work with today's Pythons and packages: its modules are mended while Python loads them.

Imports no other room, and Guild by name only. Every Python of the environment loads `hook` at its start, and no more.
Start at `table`, which lists every mend with its reason and the versions that need it; `loading` applies them.
"""
