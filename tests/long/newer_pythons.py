"""The whole test suite on Pythons that are newer than those of this machine, from a newer Debian in a folder.

    python -m tests.long.newer_pythons [--folder DIR] [--python 3.15] [ARGUMENTS OF PYTEST]

Needs Linux, root, debootstrap and a network. Making the folder takes some minutes; it is kept for the next time.
"""

import argparse
import pathlib
import shlex
import subprocess

from tests.support.debian import Debian, need_root_and_debootstrap

SUITE = "forky"
PYTHONS = ("3.14", "3.15")

# A compiler for what has no wheel for the newest Python yet (PyYAML on 3.15), and what tests use.
TOOLS = ("gcc", "libc6-dev", "git", "iproute2", "faketime", "procps", "util-linux")


def main(arguments: list[str] | None = None) -> int:
    """Runs the tests; returns 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.newer_pythons", description="Tests on newer Pythons.")
    parser.add_argument("--folder", default="/var/tmp/guild-dask-newer", help="where the Debian is, or will be made")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this version")
    options, rest = parser.parse_known_args(arguments)
    need_root_and_debootstrap()
    pythons = options.python or PYTHONS
    debian = Debian(SUITE, pathlib.Path(options.folder, SUITE))
    wanted = [f"python{version}{part}" for version in pythons for part in ("", "-venv", "-dev")]
    debian.install(*TOOLS, *wanted)
    project = debian.copy_project()
    failed = [version for version in pythons if not _passes(debian, project, f"python{version}", rest)]
    print(f"failed on Python {', '.join(failed)}" if failed else f"passed on Python {', '.join(pythons)}")  # noqa: T201
    return int(bool(failed))


def _passes(debian: Debian, project: str, python: str, arguments: list[str]) -> bool:
    place = debian.environment(project, python)
    try:
        debian.run_tests(f"{place}/bin/pytest {shlex.join(arguments)}", project)
    except subprocess.CalledProcessError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
