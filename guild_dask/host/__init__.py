"""The operating system: processes, signals, files on network file systems, cgroups and environments.

Knows neither Guild nor Dask nor runs. Imports no other room.
Start at `processes`, which identifies processes and tells whether they are alive.
"""
