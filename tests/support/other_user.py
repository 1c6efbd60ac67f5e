"""Another user of this host, with an account of their own and nothing else."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from tests.systems.needs import Missing, give_up, root_on_linux

# A user id that no account has.
UID = 61234

# The code is compiled, and modules are imported, before the process becomes another user, who cannot read this
# checkout. That user is in no group.
_BECOME = """
import os, sys
{imports}
code = compile({code!r}, "other-user", "exec")
os.setgroups([])
os.setgid({uid})
os.setuid({uid})
exec(code)
"""


def run_as_other_user(code: str, *arguments: str, imports: str = "", timeout: float = 60) -> str:
    """Runs Python code as another user, with these arguments in `sys.argv`; returns what it prints.

    Without root, the test is skipped, or fails in CI.
    """
    try:
        root_on_linux()
    except Missing as reason:
        give_up(reason)
    program = _BECOME.format(imports=imports, code=code, uid=UID)
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextlib.contextmanager
def shared_temporary_folder() -> Iterator[pathlib.Path]:
    """Yields a folder such as /tmp, in which every user may make files."""
    folder = pathlib.Path(tempfile.mkdtemp(dir="/tmp", prefix="shared-"))
    os.chmod(folder, 0o1777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
