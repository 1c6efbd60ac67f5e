"""Processes of another user of the host that look like commands of the user whose runs run."""

import subprocess

from tests.support.other_user import UID


def pretend_to_stop(run_id: str, guild_home: str, seconds: float) -> None:
    """Has a process of another user, for some seconds, whose command line and environment are those of `guild stop`."""
    who = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
    script = f'exec -a guild sh -c "sleep {seconds:.2f}" stop {run_id}'
    subprocess.run([*who, "bash", "-c", script], check=False, env={"GUILD_HOME": guild_home, "PATH": "/usr/bin:/bin"})
