"""The scalars of a run, such as `loss`, read from its event files.

A reader keeps how far it has read each file, and reads what was appended since. What one call reads is bounded, and so
is what is kept: few points for each scalar, enough for a small curve. Large records, such as images, are skipped.
"""

import array
import ctypes
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from guild_dask.home import layout
from guild_dask.home.errors import is_of_home
from guild_dask.home.event_files import FOOTER, HEADER, Point, data_length, points_in
from guild_dask.host import files

# The most event files, folder entries and levels of folders of a run, and the most scalars of a run, that are read.
_MOST_FILES = 50
_MOST_ENTRIES = 2000
_DEPTH = 4
_MOST_SCALARS = 100

# The most bytes that one update reads, and the longest record that is read; records with scalars are short.
MOST_READ = 4_000_000
_LONGEST = 100_000

# The most points of a curve, and of one that is followed.
MOST_POINTS = 64
_MOST_FOLLOWED = 100_000

# Folders of Guild's without event files.
_SKIPPED = frozenset((layout.ATTRIBUTES, "sourcecode", layout.ATTEMPTS, "job-packages"))


@dataclass
class Scalar:
    """The values of one scalar: the first, last, lowest and highest one, their number, and a curve through them."""

    first: float
    last: float
    low: float
    high: float
    step: int  # of the last value
    count: int = 0
    curve: "array.array[float]" = field(default_factory=lambda: array.array("d"))
    _stride: int = 1  # the curve has one value of so many

    def add(self, point: Point) -> None:
        """Adds a value. If the curve is full, every second value of it is dropped."""
        if self.count % self._stride == 0:
            if len(self.curve) >= MOST_POINTS:
                self.curve = self.curve[::2]
                self._stride *= 2
            if self.count % self._stride == 0:
                self.curve.append(point.value)
        self.count += 1
        self.last, self.step = point.value, point.step
        # Any number replaces one that is not a number, which is never the lowest or highest.
        if point.value < self.low or math.isnan(self.low):
            self.low = point.value
        if point.value > self.high or math.isnan(self.high):
            self.high = point.value

    @property
    def points(self) -> list[float]:
        """Returns the curve up to the last value."""
        is_complete = (self.count - 1) % self._stride == 0
        return [*self.curve] if is_complete else [*self.curve, self.last]


def _scalar_for(point: Point) -> Scalar:
    value = point.value
    return Scalar(value, value, value, value, point.step)


@dataclass
class _File:
    """How far an event file has been read, and the scalars that it has begun."""

    place: int = 0
    begun: set[str] = field(default_factory=set)


class ScalarReader:
    """Reads the scalars of one run."""

    def __init__(self, run_dir: str, followed: Collection[str] = (), with_curves: bool = False) -> None:
        """Reads the run in a directory.

        The followed scalars, named without their folders, are read after however many others, and with curves, every
        value of them is kept.
        """
        self._run_dir = run_dir
        self._followed = frozenset(followed)
        self._with_curves = with_curves
        self._curves: dict[tuple[str, str], dict[int, float]] = {}
        self._files: dict[str, _File] = {}
        self._scalars: dict[tuple[str, str], Scalar] = {}  # by folder and name
        self.is_unavailable = False  # the file system, or this host, refused the last update: more may be there

    def update(self, most: int = MOST_READ) -> bool:
        """Reads what was appended, up to so many bytes; returns whether more is left to read."""
        self.is_unavailable = False
        for folder, path in sorted(_event_files(self._run_dir, self._leave_out)):
            read = self._files.setdefault(path, _File())
            most -= self._read(folder, path, read, most)
            if most <= 0:
                return True
        return False

    def _leave_out(self, error: OSError) -> None:
        self.is_unavailable |= is_of_home(error)

    @property
    def scalars(self) -> dict[str, Scalar]:
        """Returns the scalars by name, as Guild names them; with its folder, if several folders have that name."""
        return {name: self._scalars[key] for name, key in self._keys().items()}

    def find(self, name: str) -> Scalar | None:
        """Returns a scalar by its name, with its folder (`train#loss`) or as in `scalars`; None if there is none."""
        key = self._key_for(name)
        return self._scalars[key] if key else None

    def curve(self, name: str) -> Mapping[int, float]:
        """Returns the values of a followed scalar, named as in find(), by step; of several for one step, the last.

        None without curves. Later updates add to it.
        """
        key = self._key_for(name)
        return self._curves.get(key, {}) if key else {}

    def _keys(self) -> dict[str, tuple[str, str]]:
        plain: dict[str, list[str]] = {}
        for folder, name in self._scalars:
            plain.setdefault(name, []).append(folder)
        return {
            name if folder in ("", layout.GUILD_DIR) or len(plain[name]) == 1 else f"{folder}#{name}": (folder, name)
            for folder, name in sorted(self._scalars)
        }

    def _key_for(self, name: str) -> tuple[str, str] | None:
        folder, _, tag = name.rpartition("#")
        return (folder, tag) if folder and (folder, tag) in self._scalars else self._keys().get(name)

    def _read(self, folder: str, path: str, read: _File, most: int) -> int:
        """Reads records that are complete; returns the number of bytes that were read, 0 if there was none."""
        try:
            fd = files.open_file(path)
        except OSError as e:
            self._leave_out(e)
            return 0
        used = 0
        try:
            about = os.fstat(fd)
            while used < most and read.place + HEADER <= about.st_size:
                data = os.pread(fd, max(HEADER, min(_LONGEST * 4, most - used)), read.place)
                if not self._records(folder, data, read, about.st_size):
                    break  # the next record is not complete; what was read of it counts for nothing
                used += len(data)
        except OSError as e:
            self._leave_out(e)
        finally:
            os.close(fd)
        return used

    def _records(self, folder: str, data: bytes, read: _File, size: int) -> bool:
        """Adds the points of the records that begin the data; returns whether there was one."""
        place = 0
        while place + HEADER <= len(data):
            length = data_length(data[place : place + HEADER])
            if not length:
                break  # a hole, whose data may come: no writer makes an empty record
            end = place + HEADER + length + FOOTER
            if length > _LONGEST and read.place + end <= size:
                place = end  # past the data: the next read begins there
                break
            if end > len(data):
                break
            for point in points_in(data[place + HEADER : end - FOOTER]):
                self._add(folder, point, read)
            place = end
        read.place += place
        return place > 0

    def _add(self, folder: str, point: Point, read: _File) -> None:
        key = (folder, point.name)
        scalar = self._scalars.get(key)
        if scalar is None and len(self._scalars) >= _MOST_SCALARS and point.name not in self._followed:
            return
        # A later attempt writes another file. Unless it goes on where the last one ended, its values replace the old.
        if scalar is None or (point.name not in read.begun and point.step <= scalar.step):
            scalar = self._scalars[key] = _scalar_for(point)
            self._curves.pop(key, None)
        if self._with_curves and point.name in self._followed:
            values = self._curves.setdefault(key, {})
            if len(values) < _MOST_FOLLOWED or point.step in values:
                values[point.step] = point.value
        read.begun.add(point.name)
        scalar.add(point)


def read_scalars(run_dir: str, most: int = 4 * MOST_READ) -> dict[str, Scalar]:
    """Returns the scalars of a run, read once; what is beyond so many bytes of event files is left out."""
    reader = ScalarReader(run_dir)
    reader.update(most)
    return reader.scalars


def with_32_bits(value: float) -> float:
    """Returns a number as most event files store it."""
    return ctypes.c_float(value).value


def shortest(value: float) -> float:
    """Returns the shortest number that is stored as a value with 32 bits: 0.9 for 0.8999999761581421."""
    found = (float(f"{value:.{digits}g}") for digits in range(6, 10))
    return next((each for each in found if with_32_bits(each) == value), value)


def _event_files(run_dir: str, leave_out: Callable[[OSError], None]) -> list[tuple[str, str]]:
    """Returns the folder, relative to the run's, and the path of each event file of a run.

    `leave_out` gets the error of each folder that cannot be read.
    """
    found: list[tuple[str, str]] = []
    for folder, name in _entries(run_dir, leave_out):
        if ".tfevents." in name:
            found.append((folder, os.path.join(run_dir, folder, name)))
            if len(found) >= _MOST_FILES:
                break
    return found


def _entries(run_dir: str, leave_out: Callable[[OSError], None]) -> Iterator[tuple[str, str]]:
    """Yields the folder and name of a run's files, its own first; links are not followed, and the number is bounded."""
    left = _MOST_ENTRIES
    folders = [layout.GUILD_DIR, ""]
    while folders:
        folder = folders.pop(0)
        try:
            with os.scandir(os.path.join(run_dir, folder)) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return
                    if not entry.is_dir(follow_symlinks=False):
                        yield folder, entry.name
                    elif entry.name not in (*_SKIPPED, layout.GUILD_DIR) and folder.count(os.sep) + 1 < _DEPTH:
                        folders.append(os.path.join(folder, entry.name))
        except OSError as e:
            leave_out(e)
