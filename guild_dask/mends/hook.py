"""Waits for Guild to be imported. Every Python of the environment loads this module at its start.

setup.py installs the files that Python reads at its start: a `.pth` file, and for Python 3.15 and later a `.start`
file. Guild's own processes (operations, flag imports, optimizers) do not load our plugin, and those that do have
loaded much of Guild before it, so nothing later than Python's start would do.

This must be cheap, and must never raise: it is part of every Python process, also of those without Guild.
"""

import os
import sys

# A user's way out; `guild-dask doctor` names it.
VARIABLE = "GUILD_DASK_MENDS"
OFF = ("0", "no", "off")


class Waiting:
    """A finder that finds nothing; when it is asked for `guild`, the mends take its place."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "guild":
            try:
                sys.meta_path[:] = [each for each in sys.meta_path if each is not self]
                from guild_dask.mends import loading

                loading.install()
            except Exception:  # noqa: BLE001, S110  # Guild without mends is better than no Guild
                pass


def is_off() -> bool:
    """Returns whether the user has switched the mends off."""
    return os.environ.get(VARIABLE, "").lower() in OFF


def install() -> None:
    """Waits for Guild, unless the mends are switched off or already wait."""
    if not is_off() and not any(type(each).__name__ in ("Waiting", "Mending") for each in sys.meta_path):
        sys.meta_path.insert(0, Waiting())
