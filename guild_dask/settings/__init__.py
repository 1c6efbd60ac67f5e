"""Flags and Dask's configuration to one frozen `Settings`, or to an error that names what is accepted.

Starts nothing. May import plan.
Start at `settings.settings_for`; `readers` has the reader of each flag, `flags` the command line, from dask.yml.
"""
