"""The end of a round: undisturbed schedulers run the remaining runs, and everything left is collected."""

import contextlib
from collections.abc import Iterable, Iterator

from tests.long.chaos_support import invariants, journal
from tests.long.chaos_support.home import ChaosHome, Plan
from tests.long.chaos_support.invariants import Capacity, Seen, Violation
from tests.long.chaos_support.monkey import Kill
from tests.long.chaos_support.people import Deed
from tests.long.chaos_support.schedulers import LONGEST_STOP, Crew
from tests.support.sandbox import described, wait_until

CAPACITY = Capacity(runs=3, foo=4)

_LONGEST_RUN_ONCE = 180.0  # and for each run that waits
_LONGEST_EACH = 3.0
_MOST_RUN_ONCE = 5


class Aftermath:
    """The end of a round."""

    def __init__(self, home: ChaosHome, crew: Crew, plans: list[Plan], capacity: Capacity | None) -> None:
        self._home = home
        self._crew = crew
        self._plans = plans
        self._capacity = capacity
        self.stuck: list[Violation] = []

    def work_off(self) -> None:
        """Runs undisturbed schedulers until nothing is staged, and then one more, which recovers the last runs."""
        for _ in range(_MOST_RUN_ONCE):
            if not self._home.markers(self._may_start(), "STAGED") and not self._home.claims():
                break
            self._run_once()
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self._home.processes(), LONGEST_STOP)
        self._run_once()

    def _may_start(self) -> list[Plan]:
        """Returns the runs that nothing keeps from starting."""
        after = {plan.run_id: plan.after for plan in self._plans if plan.after}
        completed = {each for each in after.values() if self._home.status(each) == "completed"}
        return [each for each in self._plans if not each.never_starts and (not each.after or each.after in completed)]

    def _run_once(self) -> None:
        scheduler = self._crew.start_scheduler(CAPACITY.runs, options="run-once=yes")
        waiting = len(self._home.markers(self._plans, "STAGED")) + len(self._home.claims())
        scheduler.wait(_LONGEST_RUN_ONCE + _LONGEST_EACH * waiting)
        if scheduler.exit_code != 0:
            raise AssertionError(f"{scheduler.name} ended with exit code {scheduler.exit_code}")

    def look(self, kills: Iterable[Kill] = (), deeds: Iterable[Deed] = ()) -> Seen:
        """Collects everything that a round leaves; adds kills at crash points to the given ones."""
        lives = journal.read(self._home.folder / "journal")
        foo = {plan.run_id: float(plan.foo) for plan in self._plans}
        left = {process.pid: described([process]).strip() for process in self._home.processes()}
        runs = self._home.runs
        return Seen(
            plans=self._plans,
            lives=lives,
            statuses=self._statuses(),
            exit_statuses={plan.run_id: self._home.exit_status(plan.run_id) for plan in self._plans},
            kills=[*kills, *invariants.crashes(self._home.folder / "crashes")],
            deeds=list(deeds),
            claims=self._home.claims(),
            left_by_schedulers=self._home.left_by_schedulers(),
            processes=left,
            logs=[
                *self._crew.logs(),
                *self._home.box.root.glob("people.log"),
                *runs.glob("*/run-output/*"),
                *runs.glob("*/dask.log"),
            ],
            outputs_of_orderly=self._outputs_of_orderly(),
            warm=[plan.run_id for plan in self._plans if self._home.was_warm(plan.run_id)],
            capacity=self._capacity,
            peaks=(journal.peak(lives.values(), dict.fromkeys(foo, 1.0)), journal.peak(lives.values(), foo)),
        )

    def _statuses(self) -> dict[str, str]:
        try:
            return self._home.statuses()
        except AssertionError as e:
            self.stuck.append(Violation("stuck", str(e)))
            return {plan.run_id: self._home.status(plan.run_id) for plan in self._plans}

    def _outputs_of_orderly(self) -> list[str]:
        folders = self._home.runs.glob("*/run-output")
        return [str(folder) for folder in folders if self._home.exit_status(folder.parent.name) == 0]

    def story(self, violation: Violation, seen: Seen) -> str:
        """Returns what is known about a violation, to find its cause."""
        lines = [f"{violation.rule}: {violation.run_id} {violation.text}"]
        if violation.run_id:
            lines += [f"  journal: {line}" for line in seen.life(violation.run_id).lines if line.what != "beat"]
            lines += [f"  deed: {deed}" for deed in seen.deeds if deed.run_id == violation.run_id]
            lines += [f"  kill: {kill}" for kill in seen.kills if kill.run_id == violation.run_id]
            for log in seen.logs:
                text = log.read_text(errors="backslashreplace").splitlines()
                lines += [f"  {log.name}: {line}" for line in text if violation.run_id in line][-10:]
            markers = sorted(file.name for file in (self._home.runs / violation.run_id).glob(".guild/*"))
            lines.append(f"  .guild: {' '.join(markers)}; exit status {seen.exit_statuses.get(violation.run_id)}")
        return "\n".join(lines)

    def tails(self, count: int = 5) -> Iterator[str]:
        """Yields the last lines of each scheduler's log."""
        for log in self._crew.logs():
            lines = log.read_text(errors="backslashreplace").splitlines()[-count:]
            yield "\n".join([f"{log.name}:", *(f"  {line}" for line in lines)])
