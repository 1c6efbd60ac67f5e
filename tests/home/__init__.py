"""Tests of guild_dask/home."""
