"""Runs one job on its worker: the process that starts the run, the guard of its limits, and the record of its end.

Knows processes and signals, and no Dask. May import plan, host and home.
Start at `runner.Runner.run`, then `starter.run`; `job` has the values that the scheduler and a worker exchange.
"""
