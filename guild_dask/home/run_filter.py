"""Which of the staged runs a scheduler sees: those that match a filter expression, as in `guild runs -F`.

The language is Guild's, and so are its parser and the names of what it compares.
"""

import itertools
import os
from dataclasses import replace
from typing import Any

from guild_dask.home.listing import Listing
from guild_dask.home.run_directory import BrokenRun, Staged, attribute_times, check_attributes

# Attributes of a waiting run that a user may change.
_CHANGEABLE = ("tags", "label", "marked", "starred", "comments")

# How many staged runs are checked at each poll for such a change.
_TURN = 1_000


class BadFilter(ValueError):
    """An expression that Guild cannot parse; the text says why, and what is accepted."""


class _Candidate:
    """A staged run in the form that Guild's filters expect. It has no scalars yet."""

    def __init__(self, run_dir: str) -> None:
        from guild import index
        from guild import run as guild_run

        self._run = guild_run.Run(os.path.basename(run_dir), run_dir)
        self._attributes = index.AttrReader()
        self._flags = index.FlagReader()
        for reader in (self._attributes, self._flags):
            reader.refresh([self._run])

    def get_attr(self, name: str) -> Any:
        return self._attributes.read(self._run, name)

    def get_flag(self, name: str) -> Any:
        return self._flags.read(self._run, name)

    def get_scalar(self, _key: str) -> Any:
        return None


class Selection:
    """The staged runs that match an expression. A run is evaluated again when it has changed."""

    def __init__(self, expression: str) -> None:
        """Reads the expression; raises BadFilter if Guild cannot parse it."""
        from guild import filter as guild_filter

        try:
            self._matches = guild_filter.parser().parse(expression)
        except SyntaxError as e:
            raise BadFilter(
                f"{_in_lower_case(str(e))}; use an expression as for 'guild runs -F', such as 'op = train and lr < 0.1'"
            ) from None
        self._judged: dict[str, tuple[Staged, tuple[int, ...], bool]] = {}
        self._broken: dict[str, str] = {}  # runs that Guild cannot evaluate, with the reason

    def of(self, listing: Listing) -> Listing:
        """Returns the listing with the runs that match only, and with runs whose match has changed."""
        gone = set(listing.gone)
        for run_id in gone:
            self._judged.pop(run_id, None)
            self._broken.pop(run_id, None)
        changed = {run.id for run in listing.staged}
        turn = [judged[0] for judged in itertools.islice(self._judged.values(), _TURN) if judged[0].id not in changed]
        found = []
        for run in (*listing.staged, *turn):
            did_match = self._did_match(run)
            if self._matches_now(run) and (run.id in changed or not did_match):
                found.append(run)
            elif did_match and not self._judged[run.id][2]:
                gone.add(run.id)
        found.sort(key=lambda run: (run.since, run.id))
        return replace(listing, staged=tuple(found), broken={**listing.broken, **self._broken}, gone=frozenset(gone))

    def matches(self, run_dir: str) -> bool:
        """Returns whether a run matches now."""
        return self._is_match(run_dir)

    def _did_match(self, run: Staged) -> bool:
        known = self._judged.get(run.id)
        return known is not None and known[2]

    def _matches_now(self, run: Staged) -> bool:
        times = attribute_times(run.dir, _CHANGEABLE)
        known = self._judged.pop(run.id, None)
        is_known = known is not None and known[:2] == (run, times)
        self._judged[run.id] = known if known and is_known else (run, times, self._is_match(run.dir))
        return self._judged[run.id][2]

    def _is_match(self, run_dir: str) -> bool:
        run_id = os.path.basename(run_dir)
        try:
            check_attributes(run_dir)  # Guild reads them without a limit
        except BrokenRun as e:
            self._broken[run_id] = str(e)
            return False
        self._broken.pop(run_id, None)
        try:
            return bool(self._matches(_Candidate(run_dir)))
        except Exception:  # noqa: BLE001  # Guild may raise anything for a broken run; others are not affected
            return False


def _in_lower_case(text: str) -> str:
    return text[:1].lower() + text[1:]
