"""The operation `dask:scheduler`: decides in a core of values, and carries out in a shell around it.

Imports neither Guild nor Dask itself. May import every room but cli and mends, its own part `search` in `observers`
only. Start at `core`, which decides, then `loop`, which carries out; `__main__` opens and closes everything.
"""
