"""Runs in jobs of a real HTCondor, which removes, holds and refuses some of them."""

import pytest

from tests.support.sandbox import Sandbox, wait_until
from tests.support.scheduling import stage, statuses
from tests.systems.htcondor import HTCondor
from tests.systems.journal import Journal
from tests.systems.queue_site import LONG, QueueSite


@pytest.fixture
def site(htcondor: HTCondor, user: Sandbox, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> QueueSite:
    """An HTCondor, and a user with a configuration for it."""
    made = QueueSite("htcondor", htcondor, user, journal, {"disk": "10MB", "walltime": None})
    made.move_in(monkeypatch)
    return made


def test_runs_run_on_nodes_and_jobs_are_given_back(site: QueueSite) -> None:
    site.check_that_runs_run_on_nodes()


def test_jobs_are_as_many_as_waiting_runs_need(site: QueueSite) -> None:
    site.check_that_jobs_are_as_many_as_runs_need()


def test_run_of_a_removed_job_goes_on_in_another(site: QueueSite) -> None:
    # A command before the worker: the worker must be what HTCondor signals, and not a shell that waits for it.
    site.configure(job_script_prologue=["true"])
    site.check_that_the_run_of_a_removed_job_goes_on("condor_rm", "its host ended it")


def test_job_whose_worker_cannot_start_is_told_with_its_reason(site: QueueSite) -> None:
    site.configure(python="/no/such/python")
    site.check_that_a_problem_is_told("0..2", "ended before its worker joined: ", "/no/such/python: ")


def test_job_that_is_held_is_told_with_the_reason_of_the_queue(site: QueueSite, htcondor: HTCondor) -> None:
    # HTCondor holds a job that it cannot start. It would stay in the queue for ever.
    site.configure(job_extra_directives={"Input": "/no/such/file", "should_transfer_files": "NO"})
    stage(site.guild, "work seconds=0.2", "aaa")
    with site.guild.started(f"{site.scheduler} workers=0..2") as scheduler:
        scheduler.wait_for_output("is held: ", LONG)
        scheduler.wait_for_output("/no/such/file", LONG)
        wait_until(lambda: not htcondor.jobs(), LONG, htcondor.jobs)
    assert "Traceback" not in scheduler.output
    assert statuses(site.user) == {"aaa": "staged"}


def test_job_that_its_user_holds_is_waited_for(site: QueueSite, htcondor: HTCondor, journal: Journal) -> None:
    site.configure(job_extra_directives={"Requirements": "false"})
    stage(site.guild, "work seconds=0.2", "aaa")
    with site.guild.started(f"{site.scheduler} workers=0..1 run-once=yes") as scheduler:
        scheduler.wait_for_output("Requested 1 worker job", LONG)
        (job,) = htcondor.jobs()
        htcondor.command("condor_hold", job)
        wait_until(lambda: htcondor.jobs() == {job: "5"}, describe=htcondor.jobs)
        htcondor.command("condor_qedit", job, "Requirements", "true")
        htcondor.command("condor_release", job)
        assert scheduler.wait(LONG).exit_code == 0
    assert "No worker started" not in scheduler.output
    journal.check(["aaa"])


def test_refusal_of_the_queue_is_told_in_its_words(site: QueueSite) -> None:
    site.configure(job_extra_directives={"universe": "nosuch"})
    site.check_that_a_problem_is_told("1", "No worker started: ERROR: I don't know about the 'nosuch' universe.")
