"""The tests as an ordinary user, with Slurm, SSH and this machine alone, in a newer Debian in a folder.

    python -m tests.long.ordinary_user [--folder DIR] [ARGUMENTS OF PYTEST]

Needs Linux, root, debootstrap and a network. Slurm and sshd run as root, and Guild's commands as a user of the folder.
The tests without other systems run as that user altogether; some need root, and are skipped.
"""

import pathlib
import shlex

from tests.long.newer_systems import SLURM, TOOLS
from tests.support.debian import Debian, need_root_and_debootstrap, parser_for

SUITE = "trixie"
SYSTEMS = ("tests/systems/test_slurm.py", "tests/systems/test_ssh.py")


def main(arguments: list[str] | None = None) -> int:
    """Runs the tests; returns 1 if one fails."""
    parser = parser_for("tests.long.ordinary_user", "Tests without root.")
    options, rest = parser.parse_known_args(arguments)
    need_root_and_debootstrap()
    debian = Debian(SUITE, pathlib.Path(options.folder, SUITE))
    debian.install(*TOOLS, *SLURM, "openssh-server", "openssh-client")
    project = debian.copy_project()
    pytest = f"{debian.environment(project, 'python3')}/bin/pytest"
    user = debian.add_user()
    home = f"/home/{user}"
    own = f"HOME={home} HYPOTHESIS_STORAGE_DIRECTORY={home}/.hypothesis"  # the folder of the project is not writable
    as_user = f"setpriv --reuid {user} --regid {user} --clear-groups env -u CI {own}"
    commands = [f"{pytest} --account {user} {shlex.join(SYSTEMS)}", f"{as_user} {pytest} {shlex.join(rest)}"]
    failed = [command for command in commands if not debian.passes(command, project)]
    print("failed" if failed else "passed", *failed, sep="\n")  # noqa: T201
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
