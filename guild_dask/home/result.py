"""The name under which other rooms import `outcome.Result`."""

from guild_dask.home.outcome import Result

__all__ = ["Result"]
