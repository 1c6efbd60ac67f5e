"""A block of rounds: one user, one scheduler, and a storm in each round."""

import contextlib
import itertools
import os
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from guild_dask.home import attempts, process_start, run_directory, run_info
from guild_dask.home.outcome import Cause
from guild_dask.monitor import schedulers
from tests.long.storm_support.moments import Moment, Watch
from tests.long.storm_support.sites import Act, Job, Refused, Site
from tests.support.patterns import Pattern
from tests.support.sandbox import Guild, Sandbox, Started, described, wait_until
from tests.support.scheduling import NO_DASHBOARD, stage, statuses
from tests.systems.journal import Journal, Life

LEASE = 50.0

# Much longer than a loaded machine takes, and shorter than three leases: a run that waits for leases is noticed.
LONGEST_ROUND = 140.0
LONGEST_AFTER_CUT = LONGEST_ROUND + 3 * LEASE + 15
LONGEST_STOP = 60.0

# Half of the runs may be forked from warm servers.
_OPERATIONS = ("work", "work-fresh")

# The work of the patterns, which no text in a staged run has by chance.
_SECONDS = "987.125"

_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|Exception ignored")

# An operation exits right after the last line in its journal; this is time enough to exit, but for nothing else.
_TIME_TO_EXIT = 0.02

# If processes are killed without a signal before, a starter has had time to record an exit after this.
_TIME_TO_RECORD = 1.0


@dataclass(frozen=True)
class Done:
    """An act that was done, and when."""

    act: Act
    job: Job
    moment: Moment
    at: float

    def __str__(self) -> str:
        where = f"job {self.job.number}" + (f" on {self.job.node}" if self.job.node else "")
        return f"{self.at:.3f} {self.act.name}, {where}, when {self.moment.name.lower().replace('_', ' ')}"


@dataclass
class Round:
    """One round: its runs, what was done to their jobs, and what was wrong afterwards."""

    seed: str
    runs: list[str]
    done: list[Done] = field(default_factory=list)
    refused: int = 0
    attempts: int = 0
    warm: int = 0  # runs whose last attempt was forked from a warm server
    excused: int = 0  # runs that were killed between their last instruction and the record of their end
    was_deaf: bool = False  # a job was suspended for longer than a lease, or killed before it was resumed
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    @property
    def has_cut(self) -> bool:
        """Returns whether something on a node had no chance to leave a record, so that leases decide."""
        return self.was_deaf or any(done.act.cuts_off for done in self.done)


class Block:
    """Rounds with one scheduler."""

    def __init__(self, site: Site, user: Sandbox, journal: Journal) -> None:
        self._site = site
        self._user = user
        self._journal = journal
        self._guild = Guild(user.root, site.guild)
        self._patterns: list[Pattern] = []

    def run(self, seeds: list[str]) -> Iterator[Round]:
        """Yields each round when it is over. What the block leaves is a violation of its last round."""
        self._site.configure(self._user)
        patterns = self._user.root / "patterns"
        patterns.mkdir()
        for operation in _OPERATIONS:
            stage(self._guild, f"{operation} seconds={_SECONDS}", f"pattern-{operation}")
            self._patterns.append(Pattern(self._user.guild_home / "runs" / f"pattern-{operation}", patterns))
        flags = f"cluster={self._site.kind} {NO_DASHBOARD} poll-interval=0.5 lease={LEASE:g} workers=0..3"
        latest = None
        try:
            with self._guild.started(f"run dask:scheduler {flags} -y") as scheduler:
                for seed in seeds:
                    if latest:
                        yield latest
                    latest = self._round(seed, scheduler)
                    if not scheduler.is_running:
                        latest.violations.append(f"the scheduler ended: {scheduler.so_far()}")
                    if latest.violations:
                        break
        except AssertionError as e:
            if latest is None:
                raise
            latest.violations.append(str(e))
        assert latest is not None
        latest.violations += self._left()
        if latest.violations:
            latest.violations.append(f"log of the scheduler:\n{scheduler.output[-4000:]}")
        yield latest

    def _round(self, seed: str, scheduler: Started) -> Round:
        dice = random.Random(seed)
        begun = time.monotonic()
        runs = [f"r{seed}-{number}".replace(" ", "-") for number in range(dice.randint(1, 3))]
        this = Round(seed, runs)
        for run_id in runs:
            seconds = f"{dice.choice((0.2, 0.5, 1.0, 3.0)):g}"
            dice.choice(self._patterns).stage(run_id, replaced={_SECONDS: seconds})
        try:
            self._storm(this, dice)
            self._wait_for_end(this)
        except AssertionError as e:
            this.violations.append(str(e))
        this.violations += [text for run_id in runs for text in self._wrong_with(run_id, this)]
        with contextlib.suppress(Refused, RuntimeError, AssertionError):
            self._undo(this.done)
        this.seconds = time.monotonic() - begun
        return this

    # What happens

    def _storm(self, this: Round, dice: random.Random) -> None:
        """Does one or two acts at moments drawn at random, and undoes those that are undone within a round."""
        target = dice.choice(this.runs)
        moment = dice.choice(list(Moment))
        watch = Watch(self._user.guild_home, self._journal.file, target)
        undone: list[tuple[float, Done]] = []
        known = self._site.jobs()  # before the moment, which may have passed when the queue answers
        for number in range(dice.choice((1, 1, 2))):
            if number == 0:
                if not watch.wait_for(moment, LONGEST_ROUND):
                    raise AssertionError(f"{target} is {watch.reached().name} and not {moment.name}; {self._journal}")
                _wait(dice.choice((0.0, dice.uniform(0, 0.02), dice.uniform(0, 0.2), dice.uniform(0, 1.0))))
            else:
                _wait(dice.uniform(0, 3.0))
            act = dice.choices(self._site.acts, [each.weight for each in self._site.acts])[0]
            job = self._job(act, watch, dice, known if number == 0 else ())
            done = self._do(act, job, this, watch)
            if done and act.undo and act.undone_after:
                undone.append((time.monotonic() + dice.uniform(*act.undone_after), done))
        for at, done in sorted(undone, key=lambda each: each[0]):
            _wait(at - time.monotonic())
            this.was_deaf |= done.act.suspends and _is_killed_later(done, this.done)
            self._undo([done])
            this.was_deaf |= done.act.suspends and time.monotonic() - done.at > LEASE
            this.done[this.done.index(done)] = Done(_without_undo(done.act), done.job, done.moment, done.at)

    def _do(self, act: Act, job: Job | None, this: Round, watch: Watch) -> Done | None:
        if job is None:
            this.refused += 1
            return None
        done = Done(act, job, watch.reached(), time.monotonic())
        try:
            act.do(job)
        except Refused:
            this.refused += 1  # the job has just ended
            return None
        this.done.append(done)
        return done

    def _job(self, act: Act, watch: Watch, dice: random.Random, known: Sequence[Job]) -> Job | None:
        """Returns a job on the run's node if it has one, if possible a known one; otherwise any for the act."""
        node = watch.host()
        if own := [job for job in known if job.node and job.node == node]:
            return dice.choice(own)
        jobs = [job for job in self._site.jobs() if job.node or not act.needs_node]
        found = [job for job in jobs if job.node == node] or jobs
        return dice.choice(found) if found else None

    def _undo(self, done: list[Done]) -> None:
        for each in done:
            if each.act.undo:
                with contextlib.suppress(Refused):  # a job that is over cannot be resumed
                    each.act.undo(each.job)

    def _wait_for_end(self, this: Round) -> None:
        timeout = LONGEST_AFTER_CUT if this.has_cut else LONGEST_ROUND
        wait_until(lambda: not self._not_over(this), timeout, lambda: f"the end of {self._not_over(this)}")
        wait_until(lambda: not self._at_work(), LONGEST_STOP, lambda: f"idle, but has {self._at_work()}")

    def _not_over(self, this: Round) -> list[str]:
        found = statuses(self._user)
        claimed = self._claims()
        late = [run_id for run_id in this.runs if found.get(run_id) not in ("completed", "error", "terminated")]
        return [f"{run_id}, {found.get(run_id)}" for run_id in late] + claimed

    def _at_work(self) -> list[str]:
        """Returns the runs that the scheduler shows as running, and workers with used slots."""
        states = [each.state for each in schedulers.alive(str(self._user.guild_home)) if each.state]
        running = [run.run for state in states for run in state.running]
        return running + [worker.name for state in states for worker in state.workers if worker.used_slots]

    def _claims(self) -> list[str]:
        folder = self._user.guild_home / "dask" / "claims"
        return sorted(os.listdir(folder)) if folder.exists() else []

    # What must hold

    def _wrong_with(self, run_id: str, this: Round) -> Iterator[str]:
        """Yields what is wrong with a run after its round."""
        run_dir = self._user.guild_home / "runs" / run_id
        lives = self._journal.lives(run_id)
        status = statuses(self._user).get(run_id)
        past = attempts.past(str(run_dir))
        this.attempts += len(past) + 1
        facts = run_directory.known_attribute(str(run_dir), run_info.NAME)
        this.warm += isinstance(facts, dict) and facts.get(process_start.KIND) == process_start.WARM
        acts = "; ".join(map(str, this.done)) or "none"
        if status != "completed":
            yield f"{run_id} is {status}, and no act asked for that ({acts})"
        for earlier, later in itertools.pairwise(lives):
            if later.begun <= earlier.last:
                yield f"{run_id} ran twice at the same time ({acts}): {earlier}; {later}"
            if earlier.attempt >= later.attempt:
                yield f"{run_id} has the attempts {earlier.attempt} and {later.attempt} ({acts})"
            if earlier.has_ended:
                if self._is_excused(earlier, this):
                    this.excused += 1
                else:
                    yield f"{run_id} was started again after it had completed ({acts}): {earlier}; {later}"
        if status == "completed" and not (lives and lives[-1].has_ended):
            yield f"{run_id} is completed, but its last attempt did not end ({acts})"
        if len(past) > len(this.done) + this.refused:
            yield f"{run_id} has {len(past) + 1} attempts, which {len(this.done)} acts do not explain ({acts})"
        waited = [attempt.number for attempt in past if attempt.cause is Cause.NODE_LOST]
        if waited and not this.has_cut:
            yield f"{run_id}: attempts {waited} were dead only by their lease, and no host was cut off ({acts})"

    def _is_excused(self, life: Life, this: Round) -> bool:
        """Returns whether the run may have been killed before anything could record that it had ended."""
        return this.was_deaf or any(
            -_TIME_TO_EXIT < done.at - life.last < (_TIME_TO_RECORD if done.act.is_hard else _TIME_TO_EXIT)
            for done in this.done
        )

    def _remains(self) -> Iterator[str]:
        """Yields what a scheduler removes at its end, as far as it is there now."""
        home = self._user.guild_home
        for job in self._site.jobs():
            yield f"left in the queue: {job}"
        if processes := self._site.processes():
            yield f"left on nodes:\n{described(processes)}"
        for name in self._claims():
            yield f"left beside the claims: {name}"
        files = ("dask/schedulers/*", "runs/*/run-output/*", "runs/*/certificates/*")
        for path in (path for pattern in files for path in home.glob(pattern)):
            if path.suffix != ".draft":
                yield f"left in the Guild home: {path.relative_to(home)}"

    def _left(self) -> Iterator[str]:
        """Yields what is left after the scheduler was stopped."""
        home = self._user.guild_home
        # Guild's own process, to which the signal goes, too, ends before the scheduler.
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not any(self._remains()), LONGEST_STOP)
        yield from self._remains()
        logs = [*self._user.root.glob("output-*"), *home.glob("runs/*/dask.log"), *home.glob("runs/*/.guild/output")]
        for log in logs:
            if found := _TRACEBACK.search(log.read_text(errors="backslashreplace")):
                yield f"{log.name} has {found[0]!r}"


def _without_undo(act: Act) -> Act:
    return replace(act, undo=None, undone_after=None)


def _is_killed_later(suspended: Done, done: list[Done]) -> bool:
    """Returns whether an act after a suspension may kill suspended processes, which can leave no record."""
    return any(other.at > suspended.at and not other.act.suspends for other in done)


def _wait(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


@contextlib.contextmanager
def living_as(user: Sandbox) -> Iterator[Journal]:
    """Gives this process the environment and folder of a user, and yields the user's journal."""
    before, folder = dict(os.environ), os.getcwd()
    os.environ.clear()
    os.environ.update(user.environ)
    try:
        yield Journal(user)
    finally:
        os.environ.clear()
        os.environ.update(before)
        os.chdir(folder)
