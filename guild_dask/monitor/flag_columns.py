"""Which flags tell runs apart, and which are the same for all of them. Pure."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guild_dask.home.trials import PRUNED


@dataclass(frozen=True)
class FlagColumns:
    """The flags of several runs, as texts."""

    names: tuple[str, ...]  # the flags that differ: of the operation with the most runs first, few values first
    own: tuple[Mapping[str, str], ...]  # for each run, those of its flags that differ, in this order
    everywhere: Mapping[str, str]  # the flags that are the same for all runs that have them
    common: Mapping[str, Mapping[str, str]]  # by operation: further flags that all its runs have in common

    def text(self, run: int) -> str:
        """Returns the flags that tell one of the runs apart, by its number: `lr=0.1 seed=3`."""
        return text_for(self.own[run])

    @property
    def shared_names(self) -> tuple[str, ...]:
        """Returns the flags that differ and that more than one run has: those that make good columns."""
        return tuple(name for name in self.names if sum(name in own for own in self.own) > 1 or len(self.own) == 1)

    def rest(self, run: int) -> str:
        """Returns the flags that tell one of the runs apart and are not shared: `n=200`."""
        return text_for({name: value for name, value in self.own[run].items() if name not in self.shared_names})

    @property
    def common_text(self) -> str:
        """Returns what is the same for all runs: `epochs=20 for all`; empty if nothing is."""
        parts = [f"{text_for(self.everywhere)} for all"] if self.everywhere else []
        parts += [f"{text_for(flags)} for all of {name}" for name, flags in self.common.items() if flags]
        return "; ".join(parts)


def columns_for(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> FlagColumns:
    """Returns the flags of runs, given as operation and flags.

    A flag differs if two runs of one operation have different values of it, or only one of them has it. The flags of an
    operation with one run count as different, so that they are shown with the run, unless all runs that have the flag
    agree. A flag that is null is not set, and left out.
    """
    flags_of: dict[str, list[Mapping[str, str]]] = {}
    texts = [texts_of(flags) for _, flags in runs]
    for (operation, _), flags in zip(runs, texts, strict=True):
        flags_of.setdefault(operation, []).append(flags)
    everywhere = _everywhere(flags_of.values())
    common = {name: _common(flags, everywhere) if len(flags) > 1 else {} for name, flags in flags_of.items()}
    values: dict[str, set[str]] = {}
    operations: dict[str, set[str]] = {}
    for (operation, _), flags in zip(runs, texts, strict=True):
        for name in flags.keys() - common[operation].keys() - everywhere.keys():
            values.setdefault(name, set()).add(flags[name])
            operations.setdefault(name, set()).add(operation)
    runs_with = {name: sum(len(flags_of[each]) for each in operations[name]) for name in values}
    # Few values make groups, which are read from the left, as in a table that is sorted by several columns.
    names = tuple(sorted(values, key=lambda name: (-runs_with[name], len(values[name]), name)))
    own = tuple(
        {name: flags[name] for name in names if name in flags and name not in common[operation]}
        for (operation, _), flags in zip(runs, texts, strict=True)
    )
    return FlagColumns(names, own, everywhere, common)


def _everywhere(operations: Iterable[Sequence[Mapping[str, str]]]) -> dict[str, str]:
    """Returns the flags with one value, which several runs have, and all or none of the runs of each operation."""
    values: dict[str, list[str]] = {}
    partial: set[str] = set()
    for flags in operations:
        for name in dict.fromkeys(name for each in flags for name in each):
            found = [each[name] for each in flags if name in each]
            values.setdefault(name, []).extend(found)
            partial |= {name} if len(found) < len(flags) else set()
    same = {name for name, found in values.items() if len(found) > 1 and len(set(found)) == 1}
    return {name: values[name][0] for name in sorted(same - partial)}


def _common(flags: Sequence[Mapping[str, str]], everywhere: Mapping[str, str]) -> dict[str, str]:
    first, *others = flags
    same = {name: value for name, value in sorted(first.items()) if all(each.get(name) == value for each in others)}
    return {name: value for name, value in same.items() if name not in everywhere}


def own_label(label: str, tags: Iterable[str], flags: Iterable[str]) -> str:
    """Returns what a user wrote as the label of a run: without the tags and flags that Guild puts into a label.

    What a search has put there stays: that the run was pruned.
    """
    label, rest = label[:_LONGEST], label[_LONGEST:]
    for tag in _named_in(label, (tag for tag in tags if tag != PRUNED)):
        label = re.sub(rf"(?<!\S){re.escape(tag)}(?!\S)", "", label)
    for name in _named_in(label, flags):
        label = re.sub(rf"(?<!\S){re.escape(name)}=({_VALUE})(?!\S)", "", label)
    return " ".join(f"{label}{rest}".split())


# So many tags and flags are searched for in so many letters: each of the ones takes time for each of the others.
_MOST_NAMES = 100
_LONGEST = 2_000


def _named_in(label: str, names: Iterable[str]) -> list[str]:
    return list(itertools.islice((name for name in names if name in label), _MOST_NAMES))


# The value of a flag in a label: in quotes, a list, or a word.
_VALUE = r"""'[^']*'|"[^"]*"|\[[^\]]*\]|\{[^}]*\}|\S*"""


def text_for(flags: Mapping[str, str]) -> str:
    """Returns flags as a user types them."""
    return " ".join(f"{name}={value}" for name, value in flags.items())


def texts_of(flags: Mapping[str, Any]) -> dict[str, str]:
    """Returns the flags that are set, each with its value as text."""
    return {name: text_for_value(value) for name, value in flags.items() if value is not None}


def text_for_value(value: Any) -> str:
    """Returns the value of a flag as a user types it in Guild: `yes`, `null`, `0.1`, `[1, 2]`."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(text_for_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{text_for_value(key)}: {text_for_value(each)}' for key, each in value.items())}}}"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
