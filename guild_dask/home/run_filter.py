"""Which of the staged runs a scheduler sees: those that match a filter expression, as in `guild runs -F`.

The language is Guild's, and so are its parser and the names of what it compares.
"""

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

from guild_dask.home import layout
from guild_dask.home.errors import check_home, raise_if_of_home
from guild_dask.home.listing import Listing
from guild_dask.home.run_directory import BrokenRun, Staged, attribute_times, check_attributes, is_search

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

        self._run = _run_of_guild(run_dir)
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


def _run_of_guild(run_dir: str) -> Any:
    """Returns Guild's object for a run; it raises OSError where Guild takes what it cannot open for missing."""
    from guild import run as guild_run

    class Run(guild_run.Run):  # type: ignore[misc]
        def __getitem__(self, name: str) -> Any:
            try:
                return super().__getitem__(name)
            except KeyError as e:
                raise_if_of_home(e)
                raise

    return Run(layout.run_id(run_dir), run_dir)


class _Judged(NamedTuple):
    """Whether a run matched, as it was then."""

    run: Staged
    times: tuple[int, ...]  # of the attributes that a user may change
    is_match: bool


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
        self._judged: dict[str, _Judged] = {}
        self._broken: dict[str, str] = {}  # runs that Guild cannot evaluate, with the reason

    def of(self, listing: Listing) -> Listing:
        """Returns the listing with the runs that match only, and with runs whose match has changed.

        Raises HomeUnavailable if a run cannot be judged now.
        """
        gone = set(listing.gone)
        for run_id in gone:
            self._judged.pop(run_id, None)
            self._broken.pop(run_id, None)
        changed = {run.id for run in listing.staged}
        turn = [judged.run for judged in itertools.islice(self._judged.values(), _TURN) if judged.run.id not in changed]
        found = []
        # All are judged before any is reported: if the home cannot be read, the next call reports them.
        for now in [self._judge(run) for run in (*listing.staged, *turn)]:
            run_id, before = now.run.id, self._judged.pop(now.run.id, None)
            self._judged[run_id] = now
            did_match = before is not None and before.is_match
            if now.is_match and (run_id in changed or not did_match):
                found.append(now.run)
            elif did_match and not now.is_match:
                gone.add(run_id)
        found.sort(key=lambda run: (run.since, run.id))
        return replace(listing, staged=tuple(found), broken={**listing.broken, **self._broken}, gone=frozenset(gone))

    def matches(self, run_dir: str) -> bool:
        """Returns whether a run matches now."""
        return self._is_match(layout.run_id(run_dir), _described(run_dir, is_search(run_dir)))

    def _judge(self, run: Staged) -> _Judged:
        run_dir = _described(run.dir, run.is_search)
        times = attribute_times(run_dir, _CHANGEABLE)
        known = self._judged.get(run.id)
        is_known = known is not None and (known.run, known.times) == (run, times)
        return known if known and is_known else _Judged(run, times, self._is_match(run.id, run_dir))

    def _is_match(self, run_id: str, run_dir: str) -> bool:
        try:
            check_attributes(run_dir)  # Guild reads them without a limit
        except BrokenRun as e:
            check_home(e, run_id)
            self._broken[run_id] = str(e)
            return False
        self._broken.pop(run_id, None)
        try:
            return bool(self._matches(_Candidate(run_dir)))
        except Exception as e:  # noqa: BLE001  # Guild may raise anything for a broken run; others are not affected
            check_home(e, run_id)
            return False


def _described(run_dir: str, is_of_search: bool) -> str:
    """Returns the directory with what a filter compares: for a search, that of its trials' prototype.

    A scheduler that takes the trials starts the search. Its own run has another operation, and no tags.
    """
    return layout.prototype(run_dir) if is_of_search else run_dir


def _in_lower_case(text: str) -> str:
    return text[:1].lower() + text[1:]
