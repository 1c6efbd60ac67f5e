"""Tests of guild_dask/host."""
