"""Guild's own test documents, which its wheel carries (`guild check -T`), without guild-dask and with it.

    python -m tests.long.guild_documents [--python PYTHON]... [--newer] [--only with] [DOCUMENT...]

Needs a network; --newer also runs them on the Pythons of a newer Debian in a folder, as root (see newer_pythons.py). No
document that holds without guild-dask may fail with it, but for the one that lists the installed plugins. The last
numbers are in docs/compatibility.md.

Uses the standard library only, because the Pythons that it is run with have nothing else.
"""

import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PROJECT = pathlib.Path(__file__).resolve().parents[2]

# The release that guild-dask mends.
GUILD = "guildai==0.9.0"

# It lists the plugins that are installed, and ours is one of them.
ABOUT_PLUGINS = frozenset({"plugins"})

# What Guild's own developers have beside it: documents use these packages.
ALSO = ("pandas", "scikit-learn", "matplotlib", "hiplot", "wheel", "twine")

# Seconds for one document; the longest takes about a minute on an idle machine.
_LONGEST = 600.0

_GIT = "[user]\n  name = A Tester\n  email = tester@example.invalid\n[init]\n  defaultBranch = main\n"


@dataclass(frozen=True)
class Results:
    """The outcomes of all documents with one Python."""

    python: str
    holds: Mapping[str, Mapping[str, bool]]  # "without" or "with" -> document -> whether it holds

    @property
    def broken(self) -> list[str]:
        """Returns the documents that hold without guild-dask and fail with it."""
        with_us = self.holds.get("with", {})
        return sorted(
            name
            for name, is_good in self.holds.get("without", {}).items()
            if is_good and not with_us.get(name, True) and name not in ABOUT_PLUGINS
        )

    def failing(self, kind: str) -> list[str]:
        return sorted(name for name, is_good in self.holds.get(kind, {}).items() if not is_good)

    def __str__(self) -> str:
        counts = [
            f"{sum(self.holds[kind].values())} of {len(self.holds[kind])}" if kind in self.holds else "-"
            for kind in ("without", "with")
        ]
        return f"| {self.python} | {' | '.join(counts)} | {', '.join(self.broken) or '-'} |"


def main(arguments: list[str] | None = None) -> int:
    """Prints the table, and what fails; returns 1 if a document fails only with guild-dask."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.guild_documents", description="Guild's documents.")
    parser.add_argument("--python", action="append", help="with these; by default the one that runs this")
    parser.add_argument("--newer", action="store_true", help="also with those of a newer Debian")
    parser.add_argument("--folder", default="/var/tmp/guild-dask-newer", help="where that Debian is, or will be made")
    parser.add_argument("--only", choices=("without", "with"), help="only without, or only with guild-dask")
    parser.add_argument("--at-a-time", type=int, default=os.cpu_count() or 1, help="how many documents")
    parser.add_argument("document", nargs="*", help="only these")
    options = parser.parse_args(arguments)
    results = [results_for(python, options) for python in options.python or [sys.executable]]
    print("| Python | without guild-dask | with guild-dask | fail only with it |\n| --- | --- | --- | --- |")  # noqa: T201
    print(*results, sep="\n", flush=True)  # noqa: T201
    is_bad = any(each.broken for each in results)
    return int(_is_bad_in_newer(options) or is_bad)


def _is_bad_in_newer(options: argparse.Namespace) -> bool:
    if not options.newer:
        return False
    from tests.long import newer_pythons
    from tests.support.debian import Debian

    debian = Debian(newer_pythons.SUITE, pathlib.Path(options.folder, newer_pythons.SUITE))
    names = [f"python{version}" for version in newer_pythons.PYTHONS]
    debian.install(*newer_pythons.TOOLS, *(f"{name}{part}" for name in names for part in ("", "-venv", "-dev")))
    project = debian.copy_project()
    given = [word for name in names for word in ("--python", name)]
    given += ["--at-a-time", str(options.at_a_time), *(["--only", options.only] if options.only else [])]
    command = [names[0], "-m", "tests.long.guild_documents", *given, *options.document]
    try:
        debian.run(f"cd {project} && exec {' '.join(command)}")
    except subprocess.CalledProcessError:
        return True
    return False


def results_for(python: str, options: argparse.Namespace) -> Results:
    """Runs the documents with a Python, in environments that have guild-dask and do not."""
    holds: dict[str, dict[str, bool]] = {}
    version = subprocess.run([python, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    with tempfile.TemporaryDirectory(prefix="documents-") as scratch:
        folder = pathlib.Path(scratch)
        for kind in (options.only,) if options.only else ("without", "with"):
            environment = _environment(folder / kind, python, kind == "with")
            names = options.document or _documents(environment)
            with concurrent.futures.ThreadPoolExecutor(options.at_a_time) as pool:
                outcomes = pool.map(lambda name, there=environment: holds_in(there, name), names)
            holds[kind] = dict(zip(names, outcomes, strict=True))
            failing = Results(version, holds).failing(kind)
            print(f"Python {version}, {kind} guild-dask: {failing} fail", flush=True)  # noqa: T201
    return Results(version, holds)


def _environment(folder: pathlib.Path, python: str, is_ours: bool) -> pathlib.Path:
    """Makes a virtual environment with Guild, and guild-dask if it is wanted, and returns its folder."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    wanted = [GUILD, *ALSO]
    if is_ours:
        source = folder / "source"
        shutil.copytree(PROJECT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))
        wanted.append(str(source))
    pip = [str(folder / "bin" / "pip"), "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, *wanted], check=True)
    return folder


def _documents(environment: pathlib.Path) -> list[str]:
    (folder,) = environment.glob("lib/python*/site-packages/guild/tests")
    return sorted(path.stem for path in folder.glob("*.md"))


def holds_in(environment: pathlib.Path, name: str) -> bool:
    """Returns whether a document holds; it has a home of its own."""
    with tempfile.TemporaryDirectory(prefix="home-", ignore_cleanup_errors=True) as home:
        pathlib.Path(home, ".gitconfig").write_text(_GIT)
        pathlib.Path(home, ".guild").mkdir()
        variables = {
            "HOME": home,
            "GUILD_HOME": f"{home}/.guild",
            "PATH": os.pathsep.join((str(environment / "bin"), os.environ.get("PATH", os.defpath))),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "VIRTUAL_ENV": str(environment),
        }
        command: Sequence[str] = [str(environment / "bin" / "guild"), "check", "--offline", "-n", "-t", name]
        try:
            done = subprocess.run(
                command,
                cwd=home,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_LONGEST,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
