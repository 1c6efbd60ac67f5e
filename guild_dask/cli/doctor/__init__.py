"""`guild-dask doctor`: checks for common problems."""
