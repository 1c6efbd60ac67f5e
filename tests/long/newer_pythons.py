"""The whole test suite on Pythons that are newer than those of this machine, from a newer Debian in a folder.

    python -m tests.long.newer_pythons [--folder DIR] [--python 3.15] [ARGUMENTS OF PYTEST]

Needs Linux, root, debootstrap and a network. Making the folder takes some minutes; it is kept for the next time.
"""

import pathlib
import shlex

from tests.support.debian import Debian, need_root_and_debootstrap, parser_for

SUITE = "forky"
PYTHONS = ("3.14", "3.15")

# A compiler for what has no wheel for the newest Python yet (PyYAML on 3.15), and what tests use.
TOOLS = ("gcc", "libc6-dev", "git", "iproute2", "faketime", "procps", "util-linux", "chromium", "chromium-driver")


def main(arguments: list[str] | None = None) -> int:
    """Runs the tests; returns 1 if one fails."""
    parser = parser_for("tests.long.newer_pythons", "Tests on newer Pythons.")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this version")
    options, rest = parser.parse_known_args(arguments)
    need_root_and_debootstrap()
    pythons = options.python or PYTHONS
    debian = Debian(SUITE, pathlib.Path(options.folder, SUITE))
    wanted = [f"python{version}{part}" for version in pythons for part in ("", "-venv", "-dev")]
    debian.install(*TOOLS, *wanted)
    project = debian.copy_project()
    failed = []
    for version in pythons:
        place = debian.environment(project, f"python{version}")
        if not debian.passes(f"{place}/bin/pytest {shlex.join(rest)}", project):
            failed.append(version)
    print(f"failed on Python {', '.join(failed)}" if failed else f"passed on Python {', '.join(pythons)}")  # noqa: T201
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
