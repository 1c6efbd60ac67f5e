"""Decisions as values: what runs request, which of them start, in which order and where, and why the others wait.

Pure: no clock, file, log, Guild or Dask. Imports no other room.
Start at `placement.plan`; `tags` reads what runs request, `reasons` has every reason why a run waits.
"""
