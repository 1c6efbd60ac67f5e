"""The tests of job queues on releases of Slurm that are newer than that of this machine, from newer Debians in folders.

    python -m tests.long.newer_systems [--folder DIR] [--suite trixie] [ARGUMENTS OF PYTEST]

Needs Linux, root, debootstrap and a network. Making a folder takes some minutes; it is kept for the next time. The last
results are in docs/clusters.md.
"""

import argparse
import pathlib
import shlex
import subprocess

from tests.support.debian import Debian, need_root_and_debootstrap

SUITES = ("trixie", "forky")
SLURM = ("munge", "slurmctld", "slurmd", "slurm-client")
TOOLS = ("python3", "python3-venv", "python3-dev", "gcc", "libc6-dev", "git", "iproute2", "procps", "faketime", "mount")


def main(arguments: list[str] | None = None) -> int:
    """Runs the tests in each folder; returns 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.newer_systems", description="Tests on newer Slurms.")
    parser.add_argument("--folder", default="/var/tmp/guild-dask-newer", help="where the Debians are, or will be made")
    parser.add_argument("--suite", action="append", choices=SUITES, help="only this one")
    options, rest = parser.parse_known_args(arguments)
    need_root_and_debootstrap()
    suites = options.suite or SUITES
    failed = [suite for suite in suites if not _passes(Debian(suite, pathlib.Path(options.folder, suite)), rest)]
    print(f"failed on {', '.join(failed)}" if failed else f"passed on {', '.join(suites)}")  # noqa: T201
    return int(bool(failed))


def _passes(debian: Debian, arguments: list[str]) -> bool:
    debian.install(*TOOLS, *SLURM)
    project = debian.copy_project()
    place = debian.environment(project, "python3")
    tests = shlex.join(arguments or ["tests/systems/test_slurm.py"])
    try:
        debian.run(f"slurmd -V; cd {project} && exec {place}/bin/pytest -p no:cacheprovider {tests}", {"CI": "true"})
    except subprocess.CalledProcessError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
