"""Which waiting runs come after other runs, and which of them can never start because of that. Pure."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from guild_dask.plan.reasons import AfterAmbiguous, AfterCycle, AfterFailed, AfterRuns, AfterUnknown, Hold
from guild_dask.plan.tags import After


class RunStatus(enum.Enum):
    """The status of a run that another run comes after."""

    UNKNOWN = "unknown"
    AMBIGUOUS = "ambiguous"
    STAGED = "staged"
    GOES_ON = "goes-on"
    COMPLETED = "completed"
    TERMINATED = "terminated"
    FAILED = "failed"


@dataclass(frozen=True)
class Found:
    """The runs whose ids begin with a given text, and their status: one run, unless none is known or several are."""

    status: RunStatus
    run_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Links:
    """The runs that a waiting run comes after."""

    after: tuple[After, ...] = ()  # by its tags
    needs: tuple[str, ...] = ()  # by its operation, which uses files of these runs

    @property
    def references(self) -> tuple[str, ...]:
        return (*(after.run for after in self.after), *self.needs)


@dataclass(frozen=True)
class Decision:
    """Why runs are held, by their ids, and whether one of them waits for a run that is running or about to run."""

    holds: Mapping[str, Hold]
    waits_for_active: bool


def decide(links: Mapping[str, Links], found: Mapping[str, Found]) -> Decision:
    """Returns why waiting runs must not start yet. `found` has an entry for each of their references."""
    holds: dict[str, Hold] = {}
    behind: dict[str, tuple[str, ...]] = {}
    waits_for_active = False
    for run_id, link in links.items():
        problem = next(_problems(link, found), None)
        awaited = [found[reference] for reference in link.references if _is_awaited(found[reference])]
        if problem:
            holds[run_id] = problem
        elif awaited:
            behind[run_id] = tuple(dict.fromkeys(one.run_ids[0] for one in awaited))
            waits_for_active = waits_for_active or any(one.status is RunStatus.GOES_ON for one in awaited)
    for run_id, awaits in behind.items():
        holds[run_id] = AfterRuns(awaits)
    for cycle in _cycles(behind):
        holds.update(dict.fromkeys(cycle, AfterCycle(cycle)))
    return Decision(holds, waits_for_active)


def _is_awaited(found: Found) -> bool:
    return found.status in (RunStatus.STAGED, RunStatus.GOES_ON)


def _problems(link: Links, found: Mapping[str, Found]) -> Iterator[Hold]:
    for after in link.after:
        one = found[after.run]
        if one.status is RunStatus.UNKNOWN:
            yield AfterUnknown(after.run)
        elif one.status is RunStatus.AMBIGUOUS:
            yield AfterAmbiguous(after.run, one.run_ids)
        elif one.status in (RunStatus.FAILED, RunStatus.TERMINATED) and not after.however_it_ends:
            yield AfterFailed(one.run_ids[0], one.status.value)
    for needed in link.needs:
        # Guild reports a missing run itself, when this one starts. It accepts the files of a terminated run.
        if found[needed].status is RunStatus.FAILED:
            yield AfterFailed(found[needed].run_ids[0], found[needed].status.value)


def _cycles(behind: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Yields cycles of runs that wait for each other: every run that can never start waits for one of them."""
    next_blocked = _next_blocked(behind)
    seen: set[str] = set()
    for start in next_blocked:
        run_id, path = start, dict[str, None]()
        while run_id not in seen:
            seen.add(run_id)
            path[run_id] = None
            run_id = next_blocked[run_id]
        if run_id in path:
            ids = list(path)
            cycle = ids[ids.index(run_id) :]
            first = cycle.index(min(cycle))
            yield (*cycle[first:], *cycle[:first])


def _next_blocked(behind: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns the runs that cannot start even if all others end, each with another such run that it waits for."""
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
