"""Tests of guild_dask/scheduler."""
