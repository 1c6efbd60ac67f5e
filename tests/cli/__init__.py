"""Tests of guild_dask/cli."""
