"""Whether a process is a Guild command that may be stopping a given run.

`guild stop` signals the operation's own process, and stays until that has ended. So an operation that ends while such a
command runs was probably stopped by the user.
"""

import getopt
import os
import pathlib
from collections.abc import Mapping, Sequence

from guild_dask.home import layout
from guild_dask.host.processes import Command

# Guild's commands that stop runs.
_STOPPING = frozenset(("stop", "delete", "rm"))

_GUILD = ("guild", "guild.main_bootstrap")

# The options before a command, as guildai 0.9 has them.
_OPTIONS = ("C:D:H:", ["debug", "debug-listen="])

# Options that do not choose runs.
_OTHER_OPTIONS = frozenset(("-y", "--yes", "-n", "--no-wait", "-s", "--stop", "-p", "--permanent"))


def may_stop(command: Command, run_id: str, home: str) -> bool:
    """Returns whether a command may stop a run of a Guild home."""
    try:
        options, arguments = getopt.getopt(_arguments(command.words), *_OPTIONS)
    except getopt.GetoptError:
        return False  # Guild refuses it
    stop = next((index for index, word in enumerate(arguments) if word in _STOPPING), None)
    if stop is None:
        return False
    own = home_of(dict(options), command.environ, command.directory)
    if own and os.path.realpath(own) != os.path.realpath(home):
        return False
    return _may_choose(arguments[stop + 1 :], run_id)


def _arguments(words: Sequence[str]) -> Sequence[str]:
    """Returns the arguments of a Guild command; none for another program, whatever its arguments are."""
    names = [os.path.basename(word) for word in words]
    guild = next((index for index, name in enumerate(names) if name in _GUILD), None)
    if guild is None:
        return ()
    before = words[1:guild]
    is_guild = guild == 0 or (names[0].startswith("python") and all(word.startswith("-") for word in before))
    return words[guild + 1 :] if is_guild else ()


def home_of(options: Mapping[str, str], environ: Mapping[str, str], directory: str) -> str | None:
    """Returns the Guild home of a command, as `guild.config` finds it; None if that cannot be told."""
    user = environ.get("HOME") or os.path.expanduser("~")
    named = options.get("-H") or environ.get("GUILD_HOME")
    if named:
        return os.path.join(directory, os.path.expanduser(named))
    if environ.get("GUILD_HOME_SCHEME"):
        return None
    activated = environ.get("CONDA_PREFIX") or environ.get("VIRTUAL_ENV")
    if activated and os.path.isdir(layout.home_in(os.path.join(directory, activated))):
        return layout.home_in(os.path.join(directory, activated))
    start = os.path.abspath(os.path.join(directory, os.path.expanduser(options.get("-C", ""))))
    return _home_above(start, user) or layout.home_in(user)


def _home_above(start: str, user: str) -> str | None:
    """Returns the first Guild home in a folder or one above it, up to that of the user; None if there is none."""
    for folder in (start, *map(str, pathlib.PurePath(start).parents)):
        if os.path.isdir(layout.home_in(folder)):
            return layout.home_in(folder)
        if os.path.realpath(folder) == os.path.realpath(user):
            return None
    return None


def _may_choose(arguments: Sequence[str], run_id: str) -> bool:
    """Returns whether arguments may choose a run: by its id, by a number, by a filter, or because they choose all."""
    runs = [word for word in arguments if not word.startswith("-")]
    filters = [word for word in arguments if word.startswith("-") and word not in _OTHER_OPTIONS]
    if filters or not runs:
        return True
    return any(run_id.startswith(word) or word.replace(":", "").isdigit() for word in runs)
