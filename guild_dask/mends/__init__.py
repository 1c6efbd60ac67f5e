"""What makes guildai 0.9.0 work with today's Pythons and packages: its modules are mended while Python loads them.

Imports Guild by name only; `table` may import home when a mend is used. A Python loads only `hook` at its start.
Start at `table`, which lists every mend with its reason and the versions that need it; `loading` applies them.
"""
