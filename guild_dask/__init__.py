"""Run staged Guild AI runs in parallel on a Dask cluster.

A staged run is never lost and never started twice. It stays staged until it starts, and a run that cannot start says
why. Guild discovers `plugin`. Its operation `dask:scheduler` (dask.yml) is `python -m guild_dask.scheduler`; its
optimizers, such as `dask:tpe`, are `python -m guild_dask.scheduler.search`.

The rooms, each with a docstring that says what it may import and where to start reading:

- plan: decisions as values: what runs request, which of them start where, and why the others wait. Pure.
- host: the operating system: processes, signals, files, cgroups and environments.
- settings: flags and configuration to one frozen value.
- home: every file in the Guild home, and all formats of Guild's files: staged runs, claims, outcomes, recovery.
- worker: what runs beside one run on its host: the starter, its guard and its limits.
- cluster: all of Dask: opening clusters of every kind, their workers, and jobs on them.
- monitor: what users see: the state, the status page, reports and the log.
- scheduler: the loop that connects all of these.
- scheduler.search: the optimizers `dask:tpe`, `dask:random` and `dask:gp`: parallel search for the best flags.
- cli: the command `guild-dask`.
- mends: what makes guildai 0.9.0 work with today's Pythons and packages.
"""

__version__ = "0.1.0"
