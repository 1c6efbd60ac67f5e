"""The part of `pkg_resources`, which setuptools 82 removed, that Guild and TensorBoard use.

It is made of `importlib.metadata` and `packaging`. What the real one does beyond that, such as the activation of
distributions, is not here.
"""

import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as _Requirement
from packaging.version import Version

RequirementParseError = InvalidRequirement

_NAMES = re.compile(r"[^A-Za-z0-9.]+")


class DistributionNotFound(Exception):
    """A distribution that is not installed."""


class Requirement(_Requirement):
    """A requirement with the classic way to make one."""

    @staticmethod
    def parse(text: str) -> "Requirement":
        return Requirement(text)


def parse_requirements(lines: str | Iterable[str]) -> Iterator[Requirement]:
    """Yields the requirements of the lines of a requirements file, without comments."""
    for line in lines.splitlines() if isinstance(lines, str) else lines:
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if text:
            yield Requirement(text)


def parse_version(text: str) -> Version:
    """Returns a version that can be compared."""
    return Version(text)


class EntryPoint:
    """A name that stands for an attribute of a module, as a distribution declares it."""

    def __init__(
        self, name: str, module_name: str, attrs: tuple[str, ...] = (), extras: Any = (), dist: Any = None
    ) -> None:
        self.name = name
        self.module_name = module_name
        self.attrs = attrs
        self.extras = extras
        self.dist = dist

    def __str__(self) -> str:
        return f"{self.name} = {self.module_name}" + (f":{'.'.join(self.attrs)}" if self.attrs else "")

    def __repr__(self) -> str:
        return f"EntryPoint.parse({str(self)!r})"

    def resolve(self) -> Any:
        """Returns what the name stands for."""
        found: Any = __import__(self.module_name, fromlist=["__name__"])
        for name in self.attrs:
            try:
                found = getattr(found, name)
            except AttributeError as e:
                raise ImportError(str(e)) from e
        return found

    def load(self, *_args: object, **_kw: object) -> Any:
        return self.resolve()


class Distribution:
    """An installed package, or what stands for one: Guild derives its projects from this class."""

    def __init__(
        self, location: str | None = None, metadata: Any = None, project_name: str | None = None, version: Any = None
    ) -> None:
        self.location = location
        self.project_name = _NAMES.sub("-", project_name or "Unknown")
        self._version = version
        self._metadata = metadata

    @property
    def key(self) -> str:
        return self.project_name.lower()

    @property
    def version(self) -> Any:
        if self._version is None:
            raise ValueError(f"missing version of {self.project_name}")
        return self._version

    def __str__(self) -> str:
        return f"{self.project_name} {self._version or '[unknown version]'}"

    def has_metadata(self, name: str) -> bool:
        return self._metadata is not None and self._metadata.read_text(name) is not None

    def get_metadata(self, name: str) -> str:
        text = None if self._metadata is None else self._metadata.read_text(name)
        if text is None:
            raise FileNotFoundError(f"{name} of {self}")
        found: str = text
        return found

    def get_metadata_lines(self, name: str) -> Iterator[str]:
        lines = (line.strip() for line in self.get_metadata(name).splitlines())
        return (line for line in lines if line and not line.startswith("#"))

    def get_entry_map(self, group: str | None = None) -> dict[str, Any]:
        entries: dict[str, dict[str, EntryPoint]] = {}
        # Most packages have no entry points of the group, and parsing takes longer than reading.
        text = (self._metadata and self._metadata.read_text("entry_points.txt")) or ""
        if text and (group is None or group in text):
            for each in self._metadata.entry_points:
                point = EntryPoint(each.name, each.module, tuple(filter(None, each.attr.split("."))), dist=self)
                entries.setdefault(each.group, {})[each.name] = point
        return entries if group is None else entries.get(group, {})


_FINDERS: dict[type, Callable[..., Iterable[Distribution]]] = {}


def register_finder(importer: type, finder: Callable[..., Iterable[Distribution]]) -> None:
    """Registers the function that finds distributions in folders with such an importer."""
    _FINDERS[importer] = finder


def find_distributions(path_item: str, only: bool = False) -> Iterator[Distribution]:
    """Yields the distributions in a folder of sys.path."""
    importer = pkgutil.get_importer(path_item)
    finder = next((_FINDERS[each] for each in type(importer).__mro__ if each in _FINDERS), None)
    if finder:
        yield from finder(importer, path_item, only)
        return
    for found in importlib.metadata.distributions(path=[path_item]):
        name, version = _name_and_version(found)
        if name:
            yield Distribution(path_item, found, name, version)


def _name_and_version(found: importlib.metadata.Distribution) -> tuple[str | None, str | None]:
    """Returns what a distribution says of itself; nothing if it has been removed but for its folder."""
    try:
        metadata: Any = found.metadata
    except FileNotFoundError:  # since Python 3.15
        return None, None
    return metadata.get("Name"), metadata.get("Version")


class WorkingSet:
    """The distributions of a list of folders, by default sys.path; the first of a name counts."""

    def __init__(self, entries: Iterable[str] | None = None) -> None:
        self.entries: list[str] = []
        self.by_key: dict[str, Distribution] = {}
        for each in sys.path if entries is None else entries:
            self.add_entry(each)

    def add_entry(self, entry: str) -> None:
        self.entries.append(entry)
        for each in find_distributions(entry, True):
            self.by_key.setdefault(each.key, each)

    def __iter__(self) -> Iterator[Distribution]:
        return iter(self.by_key.values())

    def iter_entry_points(self, group: str, name: str | None = None) -> Iterator[EntryPoint]:
        for each in self:
            for point in each.get_entry_map(group).values():
                if name in (None, point.name):
                    yield point


def iter_entry_points(group: str, name: str | None = None) -> Iterator[EntryPoint]:
    """Yields the entry points of all installed packages."""
    return working_set.iter_entry_points(group, name)


def get_distribution(name: str | Distribution) -> Distribution:
    """Returns an installed package."""
    if isinstance(name, Distribution):
        return name
    wanted = _NAMES.sub("-", Requirement(name).name).lower()
    for each in working_set:
        if each.key == wanted:
            return each
    raise DistributionNotFound(f"The {name!r} distribution was not found and is required by the application")


def resource_filename(package: str, name: str) -> str:
    """Returns the path of a file in a package."""
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise ModuleNotFoundError(f"No package named {package!r}", name=package)
    return os.path.join(folders[0], *filter(None, name.split("/"))) if name else folders[0]


working_set: WorkingSet = WorkingSet()
