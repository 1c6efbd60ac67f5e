"""The optimizers `dask:tpe`, `dask:random` and `dask:gp`: stage trials, learn from them, and schedule them, too.

All state is in run directories. May import plan, host, settings, home, worker, cluster, monitor and scheduler.
Start at `search`, which takes steps; `space`, `budget` and `stopping` decide, `engine` and `study` use Optuna.
"""
