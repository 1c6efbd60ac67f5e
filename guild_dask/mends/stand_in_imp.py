"""The part of `imp`, which Python 3.12 removed, that Guild uses: it finds the file of a script or a package."""

import os
from collections.abc import Sequence
from typing import BinaryIO

SUFFIXES = (".py", ".pyc")


def find_module(name: str, path: Sequence[str]) -> tuple[BinaryIO | None, str, tuple[str, str, int]]:
    """Returns an open file and its path, or None and the folder of a package; the rest is for the interface."""
    for folder in path:
        package = os.path.join(folder, name)
        if any(os.path.isfile(os.path.join(package, f"__init__{suffix}")) for suffix in SUFFIXES):
            return None, package, ("", "", 5)
        for kind, suffix in enumerate(SUFFIXES, 1):
            if os.path.isfile(package + suffix):
                return open(package + suffix, "rb"), package + suffix, (suffix, "rb", kind)
    raise ImportError(f"No module named {name!r}", name=name)
