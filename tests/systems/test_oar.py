"""Runs in jobs of a real OAR, which deletes and refuses some of them."""

import pytest

from tests.support.account import as_user
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, stage, statuses
from tests.systems.journal import Journal
from tests.systems.oar import OAR
from tests.systems.site import configure

SCHEDULER = f"run dask:scheduler cluster=oar {NO_DASHBOARD} poll-interval=0.5 lease=3 -y"

# The queue looks for jobs to start in cycles.
LONG = 300.0


@pytest.fixture
def site(oar: OAR, user: Sandbox, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Guild:
    """Guild on the head of the pool, for a user with a configuration."""
    for name, value in oar.variables.items():
        monkeypatch.setenv(name, value)
    configure_for(user)
    return Guild(user.root, oar.head.command(*as_user("guild")))


def configure_for(user: Sandbox, **settings: object) -> None:
    configure(user, "oar", **{"interface": "eth0", "memory_per_core_property_name": "not_applicable", **settings})


def test_runs_run_on_nodes_and_jobs_are_given_back(site: Guild, oar: OAR, journal: Journal, user: Sandbox) -> None:
    stage(site, "work seconds=2", "aaa", "bbb", "ccc")
    with site.started(f"{SCHEDULER} workers=2 run-once=yes") as scheduler:
        first = journal.wait_for("aaa", timeout=LONG)
        assert f"running ({first.host})" in site("runs").output
        assert scheduler.wait(LONG).exit_code == 0
    journal.check(["aaa", "bbb", "ccc"])
    assert {life.host for life in journal.lives()} <= set(oar.hosts)
    assert set(statuses(user).values()) == {"completed"}
    wait_until(lambda: not oar.jobs(), LONG, lambda: f"the end of {oar.jobs()}")


def test_jobs_are_as_many_as_waiting_runs_need(site: Guild, oar: OAR, journal: Journal, user: Sandbox) -> None:
    with site.started(f"{SCHEDULER} workers=0..3") as scheduler:
        scheduler.wait_for_output("Waiting for staged runs", LONG)
        assert not oar.jobs()
        stage(site, "work seconds=1", "aaa")
        journal.wait_for("aaa", timeout=LONG)
        assert len(oar.jobs()) == 1
        stage(site, "work seconds=3", "bbb", "ccc")
        wait_until(lambda: set(statuses(user).values()) == {"completed"}, LONG, lambda: str(scheduler.so_far()))
    journal.check(["aaa", "bbb", "ccc"])
    wait_until(lambda: not oar.jobs(), LONG, lambda: f"the end of {oar.jobs()}")


def test_run_of_a_deleted_job_goes_on_in_another(site: Guild, oar: OAR, journal: Journal, user: Sandbox) -> None:
    stage(site, "work seconds=20", "aaa")  # long enough for the command below on a busy machine
    with site.started(f"{SCHEDULER} workers=0..1 run-once=yes") as scheduler:
        journal.wait_for("aaa", timeout=LONG)
        (job,) = oar.jobs()
        oar.command("oardel", job)
        assert scheduler.wait(LONG).exit_code == 0
    journal.check(["aaa"])
    assert [life.attempt for life in journal.lives()] == [1, 2]
    # OAR kills all processes of a deleted job at once, so none of them can report its end.
    assert "staged again for attempt 2 (its host died or was cut off)" in scheduler.output
    assert statuses(user) == {"aaa": "completed"}


def test_job_whose_worker_cannot_start_is_told_with_its_reason(site: Guild, oar: OAR, user: Sandbox) -> None:
    configure_for(user, python="/no/such/python")
    stage(site, "work seconds=0.2", "aaa")
    with site.started(f"{SCHEDULER} workers=0..2") as scheduler:
        scheduler.wait_for_output("ended before its worker joined: ", LONG)
        scheduler.wait_for_output("/no/such/python: ", LONG)
    assert "Traceback" not in scheduler.output
    assert statuses(user) == {"aaa": "staged"}


def test_refusal_of_the_queue_is_told_in_its_words(site: Guild, oar: OAR, user: Sandbox) -> None:
    configure_for(user, queue="nosuch")
    stage(site, "work seconds=0.2", "aaa")
    with site.started(f"{SCHEDULER} workers=1") as scheduler:
        scheduler.wait_for_output("# Error: queue 'nosuch' does not exist; retrying", LONG)
    assert "Traceback" not in scheduler.output
    assert statuses(user) == {"aaa": "staged"}


def test_refusal_of_several_lines_is_told_from_its_beginning(site: Guild, oar: OAR, user: Sandbox) -> None:
    configure_for(user, job_extra_directives=["-p nosuch=1"])
    stage(site, "work seconds=0.2", "aaa")
    with site.started(f"{SCHEDULER} workers=1") as scheduler:
        scheduler.wait_for_output('# Bad resource request (ERROR:  column "nosuch" does not exist', LONG)
        scheduler.wait_for_output("# Error: please verify your job submission syntax.; retrying", LONG)
    assert statuses(user) == {"aaa": "staged"}
