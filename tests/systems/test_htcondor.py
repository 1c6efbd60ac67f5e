"""Runs in jobs of a real HTCondor, which removes, holds and refuses some of them."""

import pytest

from tests.support.account import as_user
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, stage, statuses
from tests.systems.htcondor import HTCondor
from tests.systems.journal import Journal
from tests.systems.site import configure

SCHEDULER = f"run dask:scheduler cluster=htcondor {NO_DASHBOARD} poll-interval=0.5 lease=3 -y"

# The queue looks for jobs to start in cycles.
LONG = 300.0


@pytest.fixture
def site(htcondor: HTCondor, user: Sandbox, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Guild:
    """Guild on the head of the pool, for a user with a configuration."""
    for name, value in htcondor.variables.items():
        monkeypatch.setenv(name, value)
    configure_for(user)
    return Guild(user.root, htcondor.head.command(*as_user("guild")))


def configure_for(user: Sandbox, **settings: object) -> None:
    configure(user, "htcondor", **{"interface": "eth0", "disk": "10MB", "walltime": None, **settings})


def test_runs_run_on_nodes_and_jobs_are_given_back(
    site: Guild, htcondor: HTCondor, journal: Journal, user: Sandbox
) -> None:
    stage(site, "work seconds=2", "aaa", "bbb", "ccc")
    with site.started(f"{SCHEDULER} workers=2 run-once=yes") as scheduler:
        first = journal.wait_for("aaa", timeout=LONG)
        assert f"running ({first.host})" in site("runs").output
        assert scheduler.wait(LONG).exit_code == 0
    journal.check(["aaa", "bbb", "ccc"])
    assert {life.host for life in journal.lives()} <= set(htcondor.hosts)
    assert set(statuses(user).values()) == {"completed"}
    wait_until(lambda: not htcondor.jobs(), LONG, lambda: f"the end of {htcondor.jobs()}")


def test_jobs_are_as_many_as_waiting_runs_need(
    site: Guild, htcondor: HTCondor, journal: Journal, user: Sandbox
) -> None:
    with site.started(f"{SCHEDULER} workers=0..3") as scheduler:
        scheduler.wait_for_output("Waiting for staged runs", LONG)
        assert not htcondor.jobs()
        stage(site, "work seconds=1", "aaa")
        journal.wait_for("aaa", timeout=LONG)
        assert len(htcondor.jobs()) == 1
        stage(site, "work seconds=3", "bbb", "ccc")
        wait_until(lambda: set(statuses(user).values()) == {"completed"}, LONG, lambda: str(scheduler.so_far()))
    journal.check(["aaa", "bbb", "ccc"])
    wait_until(lambda: not htcondor.jobs(), LONG, lambda: f"the end of {htcondor.jobs()}")


def test_run_of_a_removed_job_goes_on_in_another(
    site: Guild, htcondor: HTCondor, journal: Journal, user: Sandbox
) -> None:
    # A command before the worker: the worker must be what HTCondor signals, and not a shell that waits for it.
    configure_for(user, job_script_prologue=["true"])
    stage(site, "work seconds=20", "aaa")  # long enough for the command below on a busy machine
    with site.started(f"{SCHEDULER} workers=0..1 run-once=yes") as scheduler:
        journal.wait_for("aaa", timeout=LONG)
        (job,) = htcondor.jobs()
        htcondor.command("condor_rm", job)
        assert scheduler.wait(LONG).exit_code == 0
    journal.check(["aaa"])
    assert [life.attempt for life in journal.lives()] == [1, 2]
    assert "staged again for attempt 2 (its host ended it)" in scheduler.output
    assert statuses(user) == {"aaa": "completed"}


def test_job_whose_worker_cannot_start_is_told_with_its_reason(site: Guild, htcondor: HTCondor, user: Sandbox) -> None:
    configure_for(user, python="/no/such/python")
    stage(site, "work seconds=0.2", "aaa")
    with site.started(f"{SCHEDULER} workers=0..2") as scheduler:
        scheduler.wait_for_output("ended before its worker joined: ", LONG)
        scheduler.wait_for_output("/no/such/python: ", LONG)
    assert "Traceback" not in scheduler.output
    assert statuses(user) == {"aaa": "staged"}


def test_job_that_is_held_is_told_with_the_reason_of_the_queue(site: Guild, htcondor: HTCondor, user: Sandbox) -> None:
    # HTCondor holds a job that it cannot start. It would stay in the queue for ever.
    configure_for(user, job_extra_directives={"Input": "/no/such/file", "should_transfer_files": "NO"})
    stage(site, "work seconds=0.2", "aaa")
    with site.started(f"{SCHEDULER} workers=0..2") as scheduler:
        scheduler.wait_for_output("is held: ", LONG)
        scheduler.wait_for_output("/no/such/file", LONG)
        wait_until(lambda: not htcondor.jobs(), LONG, htcondor.jobs)
    assert "Traceback" not in scheduler.output
    assert statuses(user) == {"aaa": "staged"}


def test_job_that_its_user_holds_is_waited_for(
    site: Guild, htcondor: HTCondor, journal: Journal, user: Sandbox
) -> None:
    configure_for(user, job_extra_directives={"Requirements": "false"})
    stage(site, "work seconds=0.2", "aaa")
    with site.started(f"{SCHEDULER} workers=0..1 run-once=yes") as scheduler:
        scheduler.wait_for_output("Requested 1 worker job", LONG)
        (job,) = htcondor.jobs()
        htcondor.command("condor_hold", job)
        wait_until(lambda: htcondor.jobs() == {job: "5"}, describe=htcondor.jobs)
        htcondor.command("condor_qedit", job, "Requirements", "true")
        htcondor.command("condor_release", job)
        assert scheduler.wait(LONG).exit_code == 0
    assert "No worker started" not in scheduler.output
    journal.check(["aaa"])


def test_refusal_of_the_queue_is_told_in_its_words(site: Guild, htcondor: HTCondor, user: Sandbox) -> None:
    configure_for(user, job_extra_directives={"universe": "nosuch"})
    stage(site, "work seconds=0.2", "aaa")
    with site.started(f"{SCHEDULER} workers=1") as scheduler:
        scheduler.wait_for_output("No worker started: ERROR: I don't know about the 'nosuch' universe.", LONG)
    assert "Traceback" not in scheduler.output
    assert statuses(user) == {"aaa": "staged"}
