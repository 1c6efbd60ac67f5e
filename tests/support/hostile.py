"""What an accident or an attacker may put in the place of a file."""

import os
import pathlib
import shutil
import socket
from collections.abc import Callable

Accident = Callable[[pathlib.Path], object]


def remove(path: pathlib.Path) -> None:
    """Removes whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def by_pipe(path: pathlib.Path) -> None:
    """Replaces a file by a named pipe: who opens it waits for ever."""
    remove(path)
    os.mkfifo(path)


def by_socket(path: pathlib.Path) -> None:
    """Replaces a file by a socket."""
    remove(path)
    here = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{here}/{path.name}")  # the path itself may be too long
    finally:
        os.close(here)


def by_folder(path: pathlib.Path) -> None:
    """Replaces a file by a folder."""
    remove(path)
    path.mkdir()


def by_device(path: pathlib.Path) -> None:
    """Replaces a file by a link to a device without an end."""
    remove(path)
    path.symlink_to("/dev/zero")


def by_loop(path: pathlib.Path) -> None:
    """Replaces a file by a link to itself."""
    remove(path)
    path.symlink_to(path)


def by_huge_file(path: pathlib.Path) -> None:
    """Replaces a file by one that has more bytes than the machine has memory; it takes no space."""
    remove(path)
    with path.open("wb") as f:
        f.truncate(1 << 40)


def text(content: str) -> Accident:
    """Returns the accident that a file has that text."""

    def accident(path: pathlib.Path) -> None:
        remove(path)
        path.write_text(content)

    return accident


def _tenfold(first: str, line: str) -> str:
    """Returns lines, each of which has ten aliases of the one before."""
    names = "abcdefghij"
    later = (line.format(name=name, aliases=", ".join([f"*{names[i]}"] * 10)) for i, name in enumerate(names[1:]))
    return "".join([first, *later])


# Some hundred bytes that stand for a billion values.
ALIASES = _tenfold("a: &a lol\n", "{name}: &{name} [{aliases}]\n")
IN_A_LIST = f"- {ALIASES.replace(chr(10), chr(10) + '  ').rstrip()}\n"
MERGED = _tenfold("a: &a {x: 1}\n", "{name}: &{name}\n  <<: [{aliases}]\n")
ITSELF = "&a [*a]"
DEEP = "[" * 60_000
MANY = f"[{'[],' * 1_300_000}]"

ACCIDENTS: dict[str, Accident] = {
    "pipe": by_pipe,
    "socket": by_socket,
    "folder": by_folder,
    "device": by_device,
    "loop": by_loop,
    "huge": by_huge_file,
    "aliases": text(ALIASES),
    "list": text(IN_A_LIST),
    "itself": text(ITSELF),
    "merged": text(MERGED),
    "deep": text(DEEP),
    "digits": text("0x" + "f" * 19_000),
    "number": text("1" + "0" * 400),
    "no date": text(str(2**62)),
    "sexagesimal": text("1" + ":59" * 500 + ".5"),
    "timestamp": text("0001-01-01 00:00:00+23:00"),
    "json": text("[" * 70_000),
}
