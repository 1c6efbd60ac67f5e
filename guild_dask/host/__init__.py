"""The operating system: processes, signals, files on network file systems, cgroups and environments.

Imports neither Guild nor Dask, and no other room; `environment` knows the variables that they set.
Start at `processes`, which identifies processes and tells whether they are alive.
"""
