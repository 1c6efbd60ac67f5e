"""Tests of guild_dask/cluster."""
