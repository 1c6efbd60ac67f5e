"""What a system needs of this machine: if it is missing, a test is skipped, or fails in CI."""

import os
import shutil
import sys

import pytest

# Debian installs daemons in /usr/sbin, which is not on every PATH.
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/lib/gridengine"))

_INSTALLED_BY = ".ci/install-systems installs it on Debian"


class Missing(Exception):
    """This machine does not have what a system needs."""


class NotAsked(Missing):
    """The system runs only where somebody asks for it, as tests/long/newer_systems.py does."""


def program(name: str) -> str:
    """Returns the path of a program, or raises Missing."""
    path = shutil.which(name, path=_PATH)
    if path is None:
        raise Missing(f"there is no {name} on this machine; {_INSTALLED_BY}")
    return path


def root_on_linux() -> None:
    """Raises Missing unless this process can make namespaces, and start jobs as other users."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise Missing("systems for tests run on Linux, as root")


def give_up(reason: Missing) -> None:
    """Skips the test, or fails it in CI, which must have all systems."""
    if os.environ.get("CI") and not isinstance(reason, NotAsked):
        pytest.fail(str(reason), pytrace=False)
    pytest.skip(str(reason))
