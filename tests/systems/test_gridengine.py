"""Runs in jobs of a real Grid Engine, which enforces time limits to the second."""

import pytest

from tests.support.account import as_user
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, stage, statuses
from tests.systems.gridengine import GridEngine
from tests.systems.journal import Journal
from tests.systems.site import configure

SCHEDULER = f"run dask:scheduler cluster=sge {NO_DASHBOARD} poll-interval=0.5 lease=3 -y"


@pytest.fixture
def site(gridengine: GridEngine, user: Sandbox, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Guild:
    """Guild on the submit host, for a user with a configuration."""
    for name, value in gridengine.variables.items():
        monkeypatch.setenv(name, value)
    configure(user, "sge", interface="lo", queue="main")
    return Guild(user.root, gridengine.host.command(*as_user("guild")))


def test_runs_run_in_jobs(site: Guild, gridengine: GridEngine, journal: Journal, user: Sandbox) -> None:
    stage(site, "work seconds=1", "aaa", "bbb", "ccc")
    with site.started(f"{SCHEDULER} workers=1 run-once=yes") as scheduler:
        journal.wait_for("aaa")
        # Nothing but what Dask needs, on the configured interface: the ports of the scheduler and of the worker.
        assert gridengine.host.listening() == ["127.0.0.1", "127.0.0.1"]
        assert scheduler.wait().exit_code == 0
    journal.check(["aaa", "bbb", "ccc"])
    assert set(statuses(user).values()) == {"completed"}
    wait_until(lambda: not gridengine.jobs(), describe=lambda: f"the end of {gridengine.jobs()}")


def test_run_that_its_job_cuts_short_goes_on_in_another(
    site: Guild, gridengine: GridEngine, journal: Journal, user: Sandbox
) -> None:
    # The run needs more time than a job has, and resumes from files in its directory.
    configure(user, "sge", interface="lo", queue="main", walltime="00:00:12")
    stage(site, "work seconds=14", "aaa")
    site(f"{SCHEDULER} workers=1 run-once=yes", timeout=150)
    journal.check(["aaa"])
    assert len(journal.lives()) == 2


def test_run_with_a_time_limit_waits_for_a_job_that_has_it(
    site: Guild, gridengine: GridEngine, journal: Journal, user: Sandbox
) -> None:
    configure(user, "sge", interface="lo", queue="main", walltime="00:00:20")
    stage(site, "work seconds=7", "aaa", "bbb", options="--tag dask-time:12s")
    site(f"{SCHEDULER} workers=1 run-once=yes", timeout=150)
    journal.check(["aaa", "bbb"])
    assert [life.attempt for life in journal.lives()] == [1, 1]
