"""Runs in jobs of a real OAR, which deletes and refuses some of them."""

import pytest

from tests.support.sandbox import Sandbox
from tests.systems.journal import Journal
from tests.systems.oar import OAR
from tests.systems.queue_site import QueueSite


@pytest.fixture
def site(oar: OAR, user: Sandbox, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> QueueSite:
    """An OAR, and a user with a configuration for it."""
    made = QueueSite("oar", oar, user, journal, {"memory_per_core_property_name": "not_applicable"})
    made.move_in(monkeypatch)
    return made


def test_runs_run_on_nodes_and_jobs_are_given_back(site: QueueSite) -> None:
    site.check_that_runs_run_on_nodes()


def test_jobs_are_as_many_as_waiting_runs_need(site: QueueSite) -> None:
    site.check_that_jobs_are_as_many_as_runs_need()


def test_run_of_a_deleted_job_goes_on_in_another(site: QueueSite) -> None:
    # OAR kills all processes of a deleted job at once, so none of them can report its end.
    site.check_that_the_run_of_a_removed_job_goes_on("oardel", "its host died or was cut off")


def test_job_whose_worker_cannot_start_is_told_with_its_reason(site: QueueSite) -> None:
    site.configure(python="/no/such/python")
    site.check_that_a_problem_is_told("0..2", "ended before its worker joined: ", "/no/such/python: ")


def test_refusal_of_the_queue_is_told_in_its_words(site: QueueSite) -> None:
    site.configure(queue="nosuch")
    site.check_that_a_problem_is_told("1", "# Error: queue 'nosuch' does not exist; retrying")


def test_refusal_of_several_lines_is_told_from_its_beginning(site: QueueSite) -> None:
    site.configure(job_extra_directives=["-p nosuch=1"])
    beginning = '# Bad resource request (ERROR:  column "nosuch" does not exist'
    site.check_that_a_problem_is_told("1", beginning, "# Error: please verify your job submission syntax.; retrying")
