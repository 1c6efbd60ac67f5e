"""The tests as an ordinary user, with Slurm, SSH and this machine alone, in a newer Debian in a folder.

    python -m tests.long.ordinary_user [--folder DIR] [ARGUMENTS OF PYTEST]

Needs Linux, root, debootstrap and a network. Slurm and sshd run as root, and Guild's commands as a user of the folder.
The tests without other systems run as that user altogether; some need root, and are skipped.
"""

import argparse
import pathlib
import shlex
import subprocess

from tests.long.newer_systems import SLURM, TOOLS
from tests.support.debian import Debian, need_root_and_debootstrap

SUITE = "trixie"
SYSTEMS = ("tests/systems/test_slurm.py", "tests/systems/test_ssh.py")


def main(arguments: list[str] | None = None) -> int:
    """Runs the tests; returns 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.ordinary_user", description="Tests without root.")
    parser.add_argument("--folder", default="/var/tmp/guild-dask-newer", help="where the Debian is, or will be made")
    options, rest = parser.parse_known_args(arguments)
    need_root_and_debootstrap()
    debian = Debian(SUITE, pathlib.Path(options.folder, SUITE))
    debian.install(*TOOLS, *SLURM, "openssh-server", "openssh-client")
    project = debian.copy_project()
    pytest = f"{debian.environment(project, 'python3')}/bin/pytest"
    user = debian.add_user()
    as_user = f"setpriv --reuid {user} --regid {user} --clear-groups env -u CI HOME=/home/{user}"
    commands = [f"{pytest} --account {user} {shlex.join(SYSTEMS)}", f"{as_user} {pytest} {shlex.join(rest)}"]
    failed = [command for command in commands if not _passes(debian, command, project)]
    print("failed" if failed else "passed", *failed, sep="\n")  # noqa: T201
    return int(bool(failed))


def _passes(debian: Debian, command: str, project: str) -> bool:
    try:
        debian.run_tests(command, project)
    except subprocess.CalledProcessError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
