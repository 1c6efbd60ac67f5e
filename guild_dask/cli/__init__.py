"""The command `guild-dask`: one module for each of its commands, loaded when it is used.

Reads what schedulers write into the Guild home; loads no Dask, except for `doctor/`. Start at `main`. May import plan,
host, settings, home and monitor; `doctor/` also cluster and mends; `export_study` and `report` also scheduler.search.
"""
