"""Tests of guild_dask/plan."""
