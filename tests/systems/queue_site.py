"""A site with a job queue that takes no jobs from root, and what every such queue must do. The queues' tests use it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from tests.support.account import as_user
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, stage, statuses
from tests.systems.hosts import Host
from tests.systems.journal import Journal
from tests.systems.site import configure

# Queues look for jobs to start in cycles.
LONG = 300.0


class Queue(Protocol):
    """A job queue on hosts of its own."""

    head: Host
    hosts: dict[str, Host]

    @property
    def variables(self) -> Mapping[str, str]: ...

    def jobs(self) -> dict[str, str]: ...

    def command(self, *words: str) -> str: ...


@dataclass(frozen=True)
class QueueSite:
    """A queue, and a user with a configuration for it, who has an operation that writes a journal."""

    kind: str  # the cluster flag
    queue: Queue
    user: Sandbox
    journal: Journal
    settings: Mapping[str, Any]  # of dask-jobqueue, besides those of all queues

    def move_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Writes the configuration, and sets the variables that the queue's commands need."""
        for name, value in self.queue.variables.items():
            monkeypatch.setenv(name, value)
        self.configure()

    def configure(self, **settings: object) -> None:
        configure(self.user, self.kind, **{"interface": "eth0", **self.settings, **settings})

    @property
    def guild(self) -> Guild:
        """Guild on the head of the queue."""
        return Guild(self.user.root, self.queue.head.command(*as_user("guild")))

    @property
    def scheduler(self) -> str:
        return f"run dask:scheduler cluster={self.kind} {NO_DASHBOARD} poll-interval=0.5 lease=3 -y"

    def check_that_runs_run_on_nodes(self) -> None:
        """Fails unless a fixed number of workers runs all runs on the nodes, and their jobs are given back."""
        stage(self.guild, "work seconds=2", "aaa", "bbb", "ccc")
        with self.guild.started(f"{self.scheduler} workers=2 run-once=yes") as scheduler:
            first = self.journal.wait_for("aaa", timeout=LONG)
            assert f"running ({first.host})" in self.guild("runs").output
            assert scheduler.wait(LONG).exit_code == 0
        self.journal.check(["aaa", "bbb", "ccc"])
        assert {life.host for life in self.journal.lives()} <= set(self.queue.hosts)
        assert self._is_completed()
        self._wait_for_no_jobs()

    def check_that_jobs_are_as_many_as_runs_need(self) -> None:
        """Fails unless jobs come with the runs that wait, and are given back."""
        with self.guild.started(f"{self.scheduler} workers=0..3") as scheduler:
            scheduler.wait_for_output("Waiting for staged runs", LONG)
            assert not self.queue.jobs()
            stage(self.guild, "work seconds=1", "aaa")
            self.journal.wait_for("aaa", timeout=LONG)
            assert len(self.queue.jobs()) == 1
            stage(self.guild, "work seconds=3", "bbb", "ccc")
            wait_until(self._is_completed, LONG, lambda: str(scheduler.so_far()))
        self.journal.check(["aaa", "bbb", "ccc"])
        self._wait_for_no_jobs()

    def check_that_the_run_of_a_removed_job_goes_on(self, command: str, reason: str) -> None:
        """Fails unless a run is started again in another job, for that reason, when a command has removed its job."""
        stage(self.guild, "work seconds=20", "aaa")  # long enough for the command below on a busy machine
        with self.guild.started(f"{self.scheduler} workers=0..1 run-once=yes") as scheduler:
            self.journal.wait_for("aaa", timeout=LONG)
            (job,) = self.queue.jobs()
            self.queue.command(command, job)
            assert scheduler.wait(LONG).exit_code == 0
        self.journal.check(["aaa"])
        assert [life.attempt for life in self.journal.lives()] == [1, 2]
        assert f"staged again for attempt 2 ({reason})" in scheduler.output
        assert statuses(self.user) == {"aaa": "completed"}

    def check_that_a_problem_is_told(self, workers: str, *texts: str) -> None:
        """Fails unless the log has these texts, and no traceback, and the run stays staged."""
        stage(self.guild, "work seconds=0.2", "aaa")
        with self.guild.started(f"{self.scheduler} workers={workers}") as scheduler:
            for text in texts:
                scheduler.wait_for_output(text, LONG)
        assert "Traceback" not in scheduler.output
        assert statuses(self.user) == {"aaa": "staged"}

    def _is_completed(self) -> bool:
        return set(statuses(self.user).values()) == {"completed"}

    def _wait_for_no_jobs(self) -> None:
        wait_until(lambda: not self.queue.jobs(), LONG, lambda: f"the end of {self.queue.jobs()}")
