"""Tests of guild_dask/settings."""
