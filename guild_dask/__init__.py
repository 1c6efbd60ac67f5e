"""Run staged Guild AI runs in parallel on a Dask cluster."""

__version__ = "0.1.0"
