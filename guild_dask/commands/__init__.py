"""The command `guild-dask`: what goes on, why a run waits, and what may be changed about it.

It needs no server: it reads what schedulers write into the Guild home, on any host that sees it.
"""
