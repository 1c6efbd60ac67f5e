"""What happens beside one run, on the host where it runs: its starter, its limits and its final record.

Knows processes and signals, and no Dask. May import plan, host and home.
Start at `runner.Runner.run`, then `starter.run`; `job` has the values that the scheduler and a worker exchange.
"""
