"""The operation `dask:scheduler`: decides in a core of values, and carries out in a shell around it.

Imports neither Guild nor Dask itself. May import every room but cli.
Start at `__main__.main`, then `loop`; one module for each thing that the loop knows.
"""
