"""All of Dask: opens a cluster, describes its workers, runs jobs on them, and closes it.

Lets no exception of Dask out, and knows no run directories. May import plan, host, settings and worker; never home.
Start at `base`, the protocol of every kind of cluster, and `opening`. Importing this package does not load Dask.
"""
