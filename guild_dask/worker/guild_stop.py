"""Whether a process is a Guild command that may be stopping a given run.

`guild stop` signals the operation's own process, and stays until that has ended. So an operation that ends while such a
command runs was probably stopped by the user.
"""

import itertools
import os
from collections.abc import Mapping, Sequence

# Guild's commands that stop runs.
_STOPPING = frozenset(("stop", "delete", "rm"))

_GUILD = ("guild", "guild.main_bootstrap")
_HOME = ("-H", "--guild-home")

# Options that do not choose runs.
_OTHER_OPTIONS = frozenset(("-y", "--yes", "-n", "--no-wait", "-s", "--stop", "-p", "--permanent"))


def may_stop(words: Sequence[str], environ: Mapping[str, str], run_id: str, home: str) -> bool:
    """Returns whether a command line with this environment may stop a run of a Guild home."""
    arguments = _arguments(words)
    stop = next((index for index, word in enumerate(arguments) if word in _STOPPING), None)
    if stop is None:
        return False
    named = _named_home(arguments[:stop]) or environ.get("GUILD_HOME")
    if named and os.path.realpath(named) != os.path.realpath(home):
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


def _named_home(options: Sequence[str]) -> str | None:
    return next((value for option, value in itertools.pairwise(options) if option in _HOME), None)


def _may_choose(arguments: Sequence[str], run_id: str) -> bool:
    """Returns whether arguments may choose a run: by its id, by a number, by a filter, or because they choose all."""
    runs = [word for word in arguments if not word.startswith("-")]
    filters = [word for word in arguments if word.startswith("-") and word not in _OTHER_OPTIONS]
    if filters or not runs:
        return True
    return any(run_id.startswith(word) or word.replace(":", "").isdigit() for word in runs)
