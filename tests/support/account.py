"""The ordinary user that Guild's commands are run as, where the tests themselves need root.

`pytest --account NAME` names an account of this machine. Without it, Guild's commands are run as the user of the tests.
"""

import os
import pathlib
import pwd
import shutil
from dataclasses import dataclass


@dataclass(frozen=True)
class Account:
    """An account of this machine."""

    name: str
    uid: int
    gid: int


_CHOSEN: list[Account] = []


def choose(name: str) -> None:
    """Has Guild's commands run as that user from now on; raises KeyError if there is no such account."""
    entry = pwd.getpwnam(name)
    _CHOSEN[:] = [Account(name, entry.pw_uid, entry.pw_gid)]


def chosen() -> Account | None:
    """Returns the account that Guild's commands are run as; None: that of this process."""
    return _CHOSEN[0] if _CHOSEN else None


def as_user(*words: str) -> list[str]:
    """Returns a command line that runs the given one as that user."""
    account = chosen()
    if account is None:
        return list(words)
    ids = ("--reuid", str(account.uid), "--regid", str(account.gid), "--clear-groups")
    return [shutil.which("setpriv") or "setpriv", *ids, *words]


def user_name() -> str:
    """Returns the name of the user that Guild's commands are run as."""
    account = chosen()
    return account.name if account else pwd.getpwuid(os.getuid()).pw_name


def open_to_user(folder: pathlib.Path) -> None:
    """Lets that user read a folder of this process, if it is another user."""
    if chosen():
        folder.chmod(0o755)


def give(*paths: pathlib.Path) -> None:
    """Makes that user the owner of files or folders that this process has made, and able to reach them."""
    account = chosen()
    for path in paths if account else ():
        assert account is not None
        os.chown(path, account.uid, account.gid)
        for folder in path.parents:
            found = folder.stat()
            if found.st_uid == os.getuid() and not found.st_mode & 0o001 and folder != pathlib.Path("/root"):
                folder.chmod(found.st_mode | 0o011)
