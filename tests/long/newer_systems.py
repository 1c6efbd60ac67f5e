"""The tests of job queues on systems that this machine does not have, from newer Debians in folders.

    python -m tests.long.newer_systems [--folder DIR] [--suite trixie] [ARGUMENTS OF PYTEST]

Needs Linux, root, debootstrap and a network. Making a folder takes some minutes; it is kept for the next time. HTCondor
and OAR take no jobs from root, so Guild's commands are run as a user of the folder. The last results are in
docs/clusters.md.
"""

import pathlib
import shlex

from tests.support.debian import Debian, need_root_and_debootstrap, parser_for

SLURM = ("munge", "slurmctld", "slurmd", "slurm-client")
OAR = ("oar-server", "oar-server-pgsql", "oar-user", "oar-user-pgsql", "oar-node", "postgresql", "openssh-server")
TOOLS = ("python3", "python3-venv", "python3-dev", "gcc", "libc6-dev", "git", "iproute2", "procps", "faketime", "mount")

# The packages of each suite, and the tests for them. The versions are shown, too.
SUITES = {
    "trixie": ((*SLURM, *OAR), ("test_slurm.py", "test_oar.py")),
    "forky": ((*SLURM, "condor"), ("test_slurm.py", "test_htcondor.py")),
}
_VERSIONS = "dpkg-query -W -f '${Package} ${Version}\\n' slurmd condor oar-server 2> /dev/null || true"


def main(arguments: list[str] | None = None) -> int:
    """Runs the tests in each folder; returns 1 if one fails."""
    parser = parser_for("tests.long.newer_systems", "Tests on newer systems.")
    parser.add_argument("--suite", action="append", choices=SUITES, help="only this one")
    options, rest = parser.parse_known_args(arguments)
    need_root_and_debootstrap()
    suites = options.suite or SUITES
    failed = [suite for suite in suites if not _passes(Debian(suite, pathlib.Path(options.folder, suite)), rest)]
    print(f"failed on {', '.join(failed)}" if failed else f"passed on {', '.join(suites)}")  # noqa: T201
    return int(bool(failed))


def _passes(debian: Debian, arguments: list[str]) -> bool:
    packages, tests = SUITES[debian.suite]
    debian.install(*TOOLS, *packages)
    project = debian.copy_project()
    place = debian.environment(project, "python3")
    user = debian.add_user()
    given = shlex.join(arguments or [f"tests/systems/{name}" for name in tests])
    debian.run(_VERSIONS)
    return debian.passes(f"{place}/bin/pytest --account {user} {given}", project)


if __name__ == "__main__":
    raise SystemExit(main())
