"""Which jobs are over, by the answers of job queues."""

import pathlib

import pytest

from guild_dask.cli.doctor.cluster import SUBMIT_COMMANDS
from guild_dask.cluster.jobqueue import CLASSES, end_of_log
from guild_dask.cluster.queue_inquiries import INQUIRIES, Answer
from guild_dask.cluster.worker_jobs import complaint_in
from guild_dask.settings.cluster_spec import JOB_QUEUES

CANNOT_SAY = {
    "slurm": Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
    "sge": Answer(1, "", "error: commlib error: got select error (Connection refused)"),
    "pbs": Answer(111, "", "qstat: cannot connect to server head (errno=111)"),
    "lsf": Answer(255, "", "LSF is down. Please wait ..."),
    "oar": Answer(1, "", "Cannot connect to the database"),
    "moab": Answer(1, "", "ERROR:    cannot connect to server 'head'"),
    "htcondor": Answer(1, "", "-- Failed to fetch ads from: <10.0.0.1:9618> : head"),
}

# The jobs in question, the answer, and the jobs that are over.
SAYS = [
    ("slurm", ["1", "2", "3"], Answer(0, "1\n3\n"), {"2"}),
    ("slurm", ["1"], Answer(0, ""), {"1"}),
    ("slurm", ["1"], Answer(1, "", "slurm_load_jobs error: Invalid job id specified"), {"1"}),
    ("sge", ["5"], Answer(1, "", "Following jobs do not exist or permissions are not sufficient: \n5\n"), {"5"}),
    ("sge", ["5"], Answer(0, "job_number: 5\n"), set()),
    ("pbs", ["1", "12"], Answer(153, "1.head  dask  me  0 Q long\n", "qstat: Unknown Job Id 12.head"), {"12"}),
    ("pbs", ["1", "12"], Answer(35, "", "qstat: 12.head Job has finished, use -x or -H to obtain info"), {"12"}),
    ("pbs", ["7"], Answer(153, "", "qstat: Unknown Job Id Error 7.head.cluster"), {"7"}),
    ("lsf", ["1", "2", "3"], Answer(0, "1 PEND\n2 EXIT\n3 RUN\n"), {"2"}),
    ("lsf", ["4", "5"], Answer(255, "4 PEND\n", "Job <5> is not found"), {"5"}),
    ("oar", ["8"], Answer(0, "8: Error\n"), {"8"}),
    ("oar", ["8"], Answer(0, "8: Waiting\n"), set()),
    ("moab", ["9"], Answer(1, "", "ERROR:  invalid job specified: '9'"), {"9"}),
    ("moab", ["9"], Answer(0, "job 9\n\nState: Completed\n"), {"9"}),
    ("moab", ["9"], Answer(0, "job 9\n\nState: Idle\n"), set()),
    (
        "htcondor",
        ["1.0", "2.0", "3.0"],
        Answer(0, "1.0 1 undefined undefined\n3.0 4 undefined undefined\n"),
        {"2.0", "3.0"},
    ),
    ("htcondor", ["1.0"], Answer(0, "1.0 5 12 Error from slot1@n1: no\n"), set()),
]

# As above: the jobs that the queue holds because it cannot start them, and its reasons.
HELD = [
    ("htcondor", ["1.0"], Answer(0, "1.0 5 12 Error from slot1@n1: no\n"), {"1.0": "Error from slot1@n1: no"}),
    ("htcondor", ["1.0"], Answer(0, "1.0 5 1 via condor_hold (by user me)\n"), {}),
    ("htcondor", ["1.0"], Answer(0, "1.0 2 undefined undefined\n"), {}),
    ("slurm", ["1"], Answer(0, "1\n"), {}),
]


def test_every_queue_has_a_class_an_inquiry_and_a_command() -> None:
    for each in (CLASSES, INQUIRIES, SUBMIT_COMMANDS):
        assert set(each) == set(JOB_QUEUES)


@pytest.mark.parametrize("queue", JOB_QUEUES)
def test_no_job_is_over_if_its_queue_cannot_be_reached(queue: str) -> None:
    # A controller that is being restarted still has its jobs, and will start them.
    assert INQUIRIES[queue].over(["1", "2"], CANNOT_SAY[queue]) == set()


@pytest.mark.parametrize(("queue", "jobs", "answer", "over"), SAYS)
def test_jobs_that_are_over_are_found(queue: str, jobs: list[str], answer: Answer, over: set[str]) -> None:
    assert INQUIRIES[queue].over(jobs, answer) == over


@pytest.mark.parametrize(("queue", "jobs", "answer", "held"), HELD)
def test_jobs_that_the_queue_holds_are_found_with_its_reason(
    queue: str, jobs: list[str], answer: Answer, held: dict[str, str]
) -> None:
    assert INQUIRIES[queue].held(jobs, answer) == held


# What queues print when they refuse a job, and what is told of it.
REFUSALS = {
    "sbatch: error: invalid partition specified: nosuch\nsbatch: error: Batch job submission failed: Invalid\n": (
        "sbatch: error: invalid partition specified: nosuch / sbatch: error: Batch job submission failed: Invalid"
    ),
    "# Error: queue 'nosuch' does not exist\n": "# Error: queue 'nosuch' does not exist",
    # OAR 2.6.1
    """DBD::Pg::st execute failed: ERROR:  column "nosuch" does not exist
LINE 4: ... AND ((nosuch=1) ...
                  ^ at /usr/share/perl5/OAR/IO.pm line 1361.
# Bad resource request (ERROR:  column "nosuch" does not exist
LINE 4: ... AND ((nosuch=1) ...
                  )
# Error: please verify your job submission syntax.
""": (
        '# Bad resource request (ERROR:  column "nosuch" does not exist / LINE 4: ... AND ((nosuch=1) ... / ) / '
        "# Error: please verify your job submission syntax."
    ),
    # HTCondor 25.14
    "\nERROR: Failed to create new User record for condor@test.\nThe given user is not allowed to own jobs\n": (
        "ERROR: Failed to create new User record for condor@test. / The given user is not allowed to own jobs"
    ),
    "": "",
    ")\n": ")",
}


@pytest.mark.parametrize("printed", REFUSALS)
def test_refusal_is_told_from_the_beginning_of_a_message(printed: str) -> None:
    assert complaint_in(printed) == REFUSALS[printed]


@pytest.mark.parametrize(
    ("job", "other", "pattern"),
    [
        ("1", "12", "dask-worker-{}.err"),
        ("2", "12", "dask-worker-{}.err"),
        ("1.0", "21.0", "worker-{}.err"),
        ("5", "15", "OAR.dask-worker.{}.stderr"),
    ],
)
def test_log_of_another_job_is_not_taken_for_that_of_a_job(
    tmp_path: pathlib.Path, job: str, other: str, pattern: str
) -> None:
    (tmp_path / pattern.format(other)).write_text("of the other\n")
    assert end_of_log(str(tmp_path), job) == f"; see {tmp_path}"
    path = tmp_path / pattern.format(job)
    path.write_text("first\nlast\n")
    assert end_of_log(str(tmp_path), job) == f": last ({path} has more)"
