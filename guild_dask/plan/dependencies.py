"""Which waiting runs must wait for other runs, and why some of them wait in vain. Pure."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from guild_dask.plan.reasons import AfterAmbiguous, AfterCycle, AfterFailed, AfterRuns, AfterUnknown, Hold
from guild_dask.plan.tags import After


class Fate(enum.Enum):
    """What has become of a run."""

    UNKNOWN = "unknown"
    AMBIGUOUS = "ambiguous"
    STAGED = "staged"
    GOES_ON = "goes-on"
    COMPLETED = "completed"
    TERMINATED = "terminated"
    FAILED = "failed"


@dataclass(frozen=True)
class Found:
    """The run that somebody wrote down, by its id or the beginning of one, and its fate; several if ambiguous."""

    fate: Fate
    run_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Links:
    """The runs that a waiting run comes after."""

    after: tuple[After, ...] = ()  # by its tags
    needs: tuple[str, ...] = ()  # by its operation: Guild takes files of these

    @property
    def references(self) -> tuple[str, ...]:
        return (*(after.run for after in self.after), *self.needs)


@dataclass(frozen=True)
class Decision:
    """Why runs are held back, by their ids, and whether one of them waits for a run that goes on."""

    holds: Mapping[str, Hold]
    has_hope: bool


def decide(links: Mapping[str, Links], found: Mapping[str, Found]) -> Decision:
    """Returns the holds of those of the waiting runs that must not start yet; `found` has all their references."""
    holds: dict[str, Hold] = {}
    behind: dict[str, tuple[str, ...]] = {}
    has_hope = False
    for run_id, link in links.items():
        problem = next(_problems(link, found), None)
        awaited = [found[reference] for reference in link.references if _is_awaited(found[reference])]
        if problem:
            holds[run_id] = problem
        elif awaited:
            behind[run_id] = tuple(dict.fromkeys(one.run_ids[0] for one in awaited))
            has_hope = has_hope or any(one.fate is Fate.GOES_ON for one in awaited)
    for run_id, awaits in behind.items():
        holds[run_id] = AfterRuns(awaits)
    for cycle in _cycles(behind):
        holds.update(dict.fromkeys(cycle, AfterCycle(cycle)))
    return Decision(holds, has_hope)


def _is_awaited(found: Found) -> bool:
    return found.fate in (Fate.STAGED, Fate.GOES_ON)


def _problems(link: Links, found: Mapping[str, Found]) -> Iterator[Hold]:
    for after in link.after:
        one = found[after.run]
        if one.fate is Fate.UNKNOWN:
            yield AfterUnknown(after.run)
        elif one.fate is Fate.AMBIGUOUS:
            yield AfterAmbiguous(after.run, one.run_ids)
        elif one.fate in (Fate.FAILED, Fate.TERMINATED) and not after.however_it_ends:
            yield AfterFailed(one.run_ids[0], one.fate.value)
    for needed in link.needs:
        # What names no run is Guild's to judge when the run starts. Files of a run that was terminated are taken.
        if found[needed].fate is Fate.FAILED:
            yield AfterFailed(found[needed].run_ids[0], found[needed].fate.value)


def _cycles(behind: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Yields circles of runs that wait for each other: at least one for each run that waits for such a circle."""
    next_in_vain = _next_in_vain(behind)
    seen: set[str] = set()
    for start in next_in_vain:
        run_id, path = start, dict[str, None]()
        while run_id not in seen:
            seen.add(run_id)
            path[run_id] = None
            run_id = next_in_vain[run_id]
        if run_id in path:
            ids = list(path)
            circle = ids[ids.index(run_id) :]
            first = circle.index(min(circle))
            yield (*circle[first:], *circle[:first])


def _next_in_vain(behind: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns the runs that could not start even if all others did, each with one like it that it waits for."""
    waiters: dict[str, list[str]] = {}
    for run_id, awaits in behind.items():
        for awaited in awaits:
            waiters.setdefault(awaited, []).append(run_id)
    missing = {run_id: len(awaits) for run_id, awaits in behind.items()}
    free = [awaited for awaited in waiters if awaited not in behind]
    while free:
        for run_id in waiters.get(free.pop(), ()):
            missing[run_id] -= 1
            if not missing[run_id]:
                free.append(run_id)
    return {
        run_id: next(awaited for awaited in behind[run_id] if missing.get(awaited))
        for run_id, count in missing.items()
        if count
    }
