"""The file with the tracebacks of errors in guild-dask itself, in a scheduler's run directory."""

import contextlib
import traceback


def add(path: str, error: Exception) -> None:
    """Adds the traceback of an error to the file, if it can be written."""
    with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as f:
        traceback.print_exception(error, file=f)
