"""Tests of guild_dask/monitor."""
