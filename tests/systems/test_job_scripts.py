"""Job scripts of queues that the tests cannot start: they must contain the user's configuration."""

from typing import Any

import pytest

from tests.support.sandbox import Guild, Sandbox
from tests.support.scheduling import NO_DASHBOARD
from tests.systems.site import configure

# For each queue, a setting of its own and a common one, and their lines in the job script.
QUEUES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "slurm": ({"queue": "long", "account": "ours"}, ["#SBATCH -p long", "#SBATCH -A ours", "#SBATCH -t 02:00:00"]),
    "pbs": ({"queue": "long", "account": "ours"}, ["#PBS -q long", "#PBS -A ours", "#PBS -l walltime=02:00:00"]),
    "sge": ({"queue": "long", "project": "ours"}, ["#$ -q long", "#$ -P ours", "#$ -l h_rt=02:00:00"]),
    # Without these two, dask-jobqueue calls LSF.
    "lsf": (
        {"queue": "long", "project": "ours", "use_stdin": True, "lsf_units": "mb"},
        ["#BSUB -q long", '#BSUB -P "ours"', "#BSUB -W 02:00:00"],
    ),
    "oar": (
        {"queue": "long", "project": "ours"},
        ["#OAR -q long", "#OAR --project ours", "walltime=02:00:00", "/job-logs/dask-worker-%jobid%.err"],
    ),
    "moab": ({"queue": "long", "account": "ours"}, ["#PBS -q long", "#PBS -A ours", "#PBS -l walltime=02:00:00"]),
    "htcondor": ({"disk": "1GB"}, ["MY.DaskWorkerDisk = 1000000000", "MY.DaskWorkerCores = 1"]),
}


@pytest.mark.parametrize("queue", QUEUES)
def test_configuration_reaches_the_job_script(user: Sandbox, guild: Guild, queue: str) -> None:
    settings, expected = QUEUES[queue]
    walltime = None if queue == "htcondor" else "02:00:00"
    configure(user, queue, walltime=walltime, worker_extra_args=["--resources", "GPU=1"], **settings)
    done = guild(f"run dask:scheduler cluster={queue} workers=0..5 dry-run=yes {NO_DASHBOARD} -y")
    for text in (*expected, "--resources GPU=1", "--nthreads 1"):
        assert text in done.output, done


def test_directives_of_the_user_reach_the_job_script(user: Sandbox, guild: Guild) -> None:
    configure(user, "slurm", job_extra_directives=["--gres=gpu:1"], job_script_prologue=["module load cuda"])
    done = guild(f"run dask:scheduler cluster=slurm workers=2 dry-run=yes {NO_DASHBOARD} -y")
    assert "#SBATCH --gres=gpu:1" in done.output
    assert "module load cuda" in done.output


def test_missing_walltime_is_a_warning_that_names_the_default(user: Sandbox, guild: Guild) -> None:
    configure(user, "slurm", walltime=None)
    done = guild(f"run dask:scheduler cluster=slurm workers=1 dry-run=yes {NO_DASHBOARD} -y")
    assert "No walltime is configured (jobqueue.slurm.walltime in ~/.config/dask/jobqueue.yaml)" in done.output
    assert "so each job ends after 00:30:00" in done.output


def test_missing_configuration_says_what_to_write_where(user: Sandbox, guild: Guild) -> None:
    done = guild(f"run dask:scheduler cluster=slurm workers=1 dry-run=yes {NO_DASHBOARD} -y", exit_code=None)
    assert done.exit_code not in (0, None)
    assert "jobqueue.yaml" in done.output
    assert "cores" in done.output
    assert "Traceback" not in done.output
