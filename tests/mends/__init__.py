"""Tests of guild_dask/mends."""
