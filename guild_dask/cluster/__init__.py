"""All of Dask: opens a cluster, describes its workers, runs jobs on them, and closes it.

No exception of Dask's leaves this package; what goes wrong with a job is reported as an event. Start reading at
`kinds.py`, which has the protocol that every kind of cluster implements. Importing this package does not load Dask.
"""
