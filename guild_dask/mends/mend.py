"""A mend: one thing that is wrong in Guild, where, with which versions, and what is done about it."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType

PYTHON = "Python"

# Returns what Guild gets instead of the module that it imports.
StandIn = Callable[[], ModuleType]


@dataclass(frozen=True)
class Range:
    """Versions of Python or of a package: from `since` on, and lower than `before`."""

    name: str
    since: str = ""
    before: str = ""
    or_missing: bool = False  # whether a package that is not installed counts

    def __str__(self) -> str:
        bounds = [f"{self.since} and later" if self.since else "", f"below {self.before}" if self.before else ""]
        bounds += [] if any(bounds) else ["of any version"]
        return " ".join([self.name, *filter(None, bounds), *(["or none"] if self.or_missing else [])])

    def has(self, version: str | None) -> bool:
        """Returns whether the version is in the range; None is a package that is not installed."""
        if version is None:
            return self.or_missing
        return _numbers(self.since) <= _numbers(version) and not (
            self.before and _numbers(version) >= _numbers(self.before)
        )


# The releases that every mend is for; setup.py allows no others. A copy that pip did not install has no version.
GUILD = Range("guildai", before="0.10", or_missing=True)


@dataclass(frozen=True)
class Mend:
    """One mend: stand-ins for what modules of Guild import, a change of modules when they are loaded, or a refusal."""

    name: str
    where: tuple[str, ...]  # the modules that are mended
    why: str  # what happens without it
    needed: tuple[Range, ...] = ()  # it is applied if all hold, and that of Guild
    imports: Mapping[str, StandIn] = field(default_factory=dict)  # what these modules get if they import a name
    change: Callable[[ModuleType], None] | None = None  # called with each of the modules when it is loaded
    refuses: str = ""  # a module that cannot be imported on behalf of these modules

    def is_needed(self, versions: Callable[[str], str | None]) -> bool:
        """Returns whether the installed versions are those that need the mend."""
        return all(each.has(versions(each.name)) for each in (GUILD, *self.needed))


def version_of(name: str) -> str | None:
    """Returns the installed version of a package, or of Python; None if there is none.

    Reads names of folders: `importlib.metadata` takes a hundredth of a second to load, and every run would pay for it.
    """
    if name == PYTHON:
        return ".".join(map(str, sys.version_info[:3]))
    for folder in sys.path:
        if folder not in _INSTALLED:
            _INSTALLED[folder] = _packages_in(folder)
        if name in _INSTALLED[folder]:
            return _INSTALLED[folder][name]
    return None


_INSTALLED: dict[str, dict[str, str]] = {}


def _packages_in(folder: str) -> dict[str, str]:
    """Returns the versions of the packages in a folder of sys.path."""
    try:
        names = os.listdir(folder or os.curdir)
    except OSError:
        return {}
    found = {}
    for name in names:
        stem, _, suffix = name.rpartition(".")
        if suffix in ("dist-info", "egg-info"):
            package, _, rest = stem.partition("-")
            found[package.lower().replace("_", "-")] = rest.partition("-py")[0]
    return found


def _numbers(version: str) -> list[int]:
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return numbers
