"""Tests of guild_dask/worker."""
