"""What the log says about waiting runs: each fact once, in order, and only some of many at a time. Pure."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence

from guild_dask.home.run_directory import Staged
from guild_dask.plan.placement import Kind, StagedRun, Worker, is_impossible
from guild_dask.plan.reasons import AfterRuns, CannotBeRead, Delay, Hold, NotDefined, Obstacle, Reason, Reserved
from guild_dask.plan.resources import MEMORY, Unreadable
from guild_dask.plan.tags import BATCH, few_bytes
from guild_dask.scheduler import log_texts
from guild_dask.scheduler.instructions import DEBUG, INFO, WARNING, Log
from guild_dask.scheduler.waiting import WaitingRuns

# How many waiting runs are logged at a time. Logging takes as long as reading them, and starts must not wait for it.
AT_A_TIME = 500

# The key under which `_logged` has that the scheduler waits for staged runs; no run has this id.
_WAITING = "waiting"


class _Pending:
    """Runs that are to be logged, in the order of their keys: of very many, a few at a time."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[int, str]] = {}
        self._heap: list[tuple[int, str]] = []  # with keys of runs that are not pending any more

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def add(self, run_id: str, key: tuple[int, str]) -> None:
        """Adds a run, whose key may be another one than before."""
        if self._keys.get(run_id) != key:
            self._keys[run_id] = key
            heapq.heappush(self._heap, key)

    def discard(self, run_id: str) -> None:
        """Removes a run, if it is there."""
        self._keys.pop(run_id, None)

    def take(self, count: int) -> list[str]:
        """Removes the first runs, as many as there are up to a number, and returns them."""
        found: list[str] = []
        while self._heap and len(found) < count:
            key = heapq.heappop(self._heap)
            if self._keys.get(key[1]) == key:
                del self._keys[key[1]]
                found.append(key[1])
        return found


class Announcer:
    """What has been logged about waiting runs, and what is still to be logged."""

    def __init__(self, waiting: WaitingRuns, at_a_time: int = AT_A_TIME) -> None:
        self._waiting = waiting
        self._at_a_time = at_a_time
        # The last fact that was logged about each run. A fact is compared, never shown.
        self._logged: dict[str, object] = {}
        # Runs in a line about which nothing has been logged since they joined it, or since their kind's reason changed.
        self._pending = _Pending()
        # Why no run of a kind can ever start, as it was last logged; None where it can.
        self._impossible: dict[Kind, Reason | None] = {}
        # Why runs waited at the last plan.
        self.held: Mapping[str, Delay] = {}
        self._warned: set[str] = set()  # texts of warnings about tags, each logged once
        self._memory = 0.0  # the most that a worker has
        self.has_more = False  # runs are left to be logged

    def impossible(self, kind: Kind) -> Reason | None:
        """Returns why no run of a kind can ever start, as it was last logged."""
        return self._impossible.get(kind)

    def has_promised(self, run_id: str) -> bool:
        """Returns whether the log says that this scheduler starts a run, and nothing else since."""
        fact = self._logged.get(run_id)
        return isinstance(fact, CannotBeRead) or (isinstance(fact, tuple) and fact[1] is None)

    def forget(self, run_id: str) -> None:
        """Forgets what was logged about a run, so that its next fact is logged."""
        self._logged.pop(run_id, None)

    def _is_news(self, run_id: str, fact: object) -> bool:
        if self._logged.get(run_id) == fact:
            return False
        self._logged[run_id] = fact
        return True

    def _take_changes(self) -> None:
        changes = self._waiting.take_changes()
        for run_id in changes.left:
            self._pending.discard(run_id)
        self._add_pending(changes.joined)

    def _add_pending(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            self._pending.add(run_id, self._waiting.key(run_id))

    # What is logged

    def idle(self, outcomes: int) -> list[Log]:
        """Returns that nothing is left to do, once after each run that ended."""
        return [Log(INFO, "Waiting for staged runs")] if self._is_news(_WAITING, outcomes) else []

    def hold(self, run_id: str, obstacle: Obstacle) -> list[Log]:
        """Returns why a run stays staged that cannot be started as it is."""
        is_news = self._is_news(run_id, obstacle)
        return [Log(WARNING, f"Leaving run {run_id} staged ({obstacle})")] if is_news else []

    def postponed(self, run_id: str, reason: CannotBeRead) -> list[Log]:
        """Returns why a run cannot start now, though nothing of what it requests is missing."""
        text = f"Run {run_id} cannot start now ({reason}); it will be tried again"
        return [Log(WARNING, text)] if self._is_news(run_id, reason) else []

    def unreadable(self, broken: Mapping[str, str]) -> list[Log]:
        """Returns which staged runs cannot be read."""
        news = [(run_id, problem) for run_id, problem in broken.items() if self._is_news(run_id, problem)]
        return [Log(WARNING, f"Ignoring staged run {run_id}: {problem}") for run_id, problem in news]

    def blocked(self, running: Iterable[str]) -> list[Log]:
        """Returns, once for each waiting run, that runs of others hold it back."""
        self._take_changes()
        self.has_more = False
        text = ", ".join(running)
        run_ids = self._waiting.in_order()
        self._add_pending(run_ids)
        news = [run_id for run_id in run_ids if self._is_news(run_id, "waits for running")]
        return [Log(INFO, f"Found staged run {run_id} (waiting for runs to finish: {text})") for run_id in news]

    def queued(self, workers: Sequence[Worker], may_start: bool = True) -> list[Log]:
        """Returns a line for each waiting run that has none yet: it is queued, or why it is not; some at a time.

        While nothing may start, only runs that never could are logged.
        """
        self._take_changes()
        lines = [log for run_id, hold in self._waiting.holds.items() for log in self._placed(run_id, hold)]
        impossible = {kind: is_impossible(StagedRun("", dict(kind)), workers) for kind in self._waiting.kinds()}
        for kind, reason in impossible.items():
            if reason != self._impossible.get(kind):
                self._add_pending(self._waiting.members(kind))
        self._impossible = impossible
        self._memory = max((worker.total.get(MEMORY, 0.0) for worker in workers), default=0.0)
        due, self.has_more = self._due(None if may_start else impossible)
        for run_id in due:
            lines += self._placed(run_id, impossible[self._waiting.kind(run_id)])
        return lines

    def _due(self, impossible: Mapping[Kind, Reason | None] | None) -> tuple[list[str], bool]:
        """Returns the pending runs to be logged now, and whether more are left; of impossible ones only if given."""
        if impossible is None:
            due = self._pending.take(self._at_a_time)
            return due, len(self._pending) > 0
        chosen = [run_id for run_id in self._pending if impossible[self._waiting.kind(run_id)] is not None]
        due = heapq.nsmallest(self._at_a_time, chosen, key=self._waiting.key)
        for run_id in due:
            self._pending.discard(run_id)
        return due, len(chosen) > len(due)

    def starting(self, run_id: str) -> list[Log]:
        """Returns that a run is in the plan, if nothing was logged about it before it starts."""
        self._take_changes()
        return self._placed(run_id, None) if run_id in self._pending else []

    def waits(self, held: Mapping[str, Delay]) -> list[Log]:
        """Returns why runs wait after a plan: in all detail for debugging, and for users when one is reserved for."""
        news = [(run_id, reason) for run_id, reason in held.items() if self.held.get(run_id) != reason]
        self.held = dict(held)
        levels = ((INFO if isinstance(reason, Reserved) else DEBUG, run_id, reason) for run_id, reason in news)
        return [Log(level, f"Run {run_id} {reason}") for level, run_id, reason in levels]

    def _placed(self, run_id: str, reason: Reason | Hold | None) -> list[Log]:
        run = self._waiting[run_id]
        before = self._logged.get(run_id)
        # That a run waits for others is logged once, however many of them are left.
        if not self._is_news(run_id, (run.tags, AfterRuns if isinstance(reason, AfterRuns) else reason)):
            return []
        is_tagged_anew = not isinstance(before, tuple) or before[0] != run.tags
        warnings = [
            Log(WARNING, log_texts.unreadable(run_id, part)) for part in run.requirements.unreadable if is_tagged_anew
        ]
        batch = [Log(WARNING, log_texts.about(run_id, BATCH))] if run.is_batch and is_tagged_anew else []
        return [*warnings, *self._doubt(run), *batch, self._line(run_id, reason)]

    def _doubt(self, run: Staged) -> list[Log]:
        """Returns a warning about a tag that probably means something else, once for each tag."""
        text = few_bytes(run.tags, run.requirements, self._memory)
        if not text or text in self._warned:
            return []
        self._warned.add(text)
        return [Log(WARNING, log_texts.about(run.id, text))]

    def _line(self, run_id: str, reason: Reason | Hold | None) -> Log:
        if reason is None:
            requests, is_blind = self._waiting.requests_of(run_id), self._waiting.sees_no_device(run_id)
            ignored = [part for part in self._waiting[run_id].requirements.unreadable if isinstance(part, Unreadable)]
            return Log(INFO, log_texts.starting(run_id, requests, sees_no_gpu=is_blind, ignored=ignored))
        if isinstance(reason, NotDefined):
            # Misspelt on purpose: the documented output of guildai's own scheduler has this word.
            return Log(INFO, f"Ignorning staged run {run_id} ({reason})")
        if isinstance(reason, AfterRuns):
            return Log(INFO, f"Found staged run {run_id} ({reason})")
        return Log(WARNING, f"Leaving run {run_id} staged ({reason})")
