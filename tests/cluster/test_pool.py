"""Workers that are requested from a job queue whose commands fail, hang or print nothing."""

import os
import pathlib
import signal
import stat
from collections.abc import Iterator

import pytest

from guild_dask.cluster.base import ClusterError, WorkerCapacity
from guild_dask.cluster.events import ClusterTrouble, WorkersChanged
from guild_dask.cluster.jobqueue import JobQueue
from guild_dask.cluster.pool import WorkerPool
from guild_dask.cluster.scaling import FIRST_PAUSE
from guild_dask.cluster.security import security_for, worker_options
from guild_dask.cluster.worker_jobs import PoolTerms
from guild_dask.settings.cluster_spec import WorkerCount
from tests.support.fake_queue import FakeQueue, fake_queue
from tests.support.sandbox import wait_until


@pytest.fixture
def queue(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeQueue]:
    with fake_queue(tmp_path / "queue", monkeypatch) as queue:
        yield queue


def troubles(queue: FakeQueue) -> list[ClusterTrouble]:
    return [event for event in queue.events if isinstance(event, ClusterTrouble)]


def wait_for_trouble(queue: FakeQueue, count: int = 1) -> list[ClusterTrouble]:
    wait_until(lambda: len(troubles(queue)) >= count, describe=lambda: queue.events)
    return troubles(queue)


def wait_for_jobs(queue: FakeQueue, count: int) -> None:
    """Waits until that many jobs have been requested at a time, and their ids are known."""
    news = f"Requested {count} worker job"
    wait_until(
        lambda: any(event.news.startswith(news) for event in queue.events if isinstance(event, WorkersChanged)),
        describe=lambda: queue.events,
    )


def test_jobs_are_kept_while_the_queue_does_not_answer(queue: FakeQueue) -> None:
    queue.write("squeue-fails", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    with queue.pool(most=2) as pool:
        queue.adjust(pool, 2)
        wait_for_jobs(queue, 2)

        def has_asked_twice() -> bool:
            queue.adjust(pool, 2)
            return len(queue.lines("asked")) >= 2

        wait_until(has_asked_twice, describe=lambda: queue.events)
        assert not troubles(queue)
        assert len(queue.lines("submitted")) == 2


@pytest.mark.parametrize("complaint", ["", "slurm_load_jobs error: Invalid job id specified\n"])
def test_jobs_that_end_together_are_one_failure(queue: FakeQueue, complaint: str) -> None:
    with queue.pool(most=3) as pool:
        queue.adjust(pool, 3)
        wait_for_jobs(queue, 3)
        queue.write("listed")
        if complaint:
            queue.write("squeue-fails", complaint)
        queue.adjust(pool, 3)
        (trouble,) = wait_for_trouble(queue)
        assert "ended before its worker joined" in trouble.trouble.problem
        assert "(and 2 more)" in trouble.trouble.problem
        assert trouble.pause == FIRST_PAUSE
        queue.adjust(pool, 3)
        assert len(queue.lines("submitted")) == 3
        queue.clock.advance(trouble.pause)
        queue.adjust(pool, 3)
        queue.wait_for("submitted", 6)


def test_request_that_fails_before_it_is_sent_is_made_again(queue: FakeQueue) -> None:
    # Without a job id the queue cannot be asked about the job, and the runs would wait for ever.
    slurm = JobQueue("slurm", {}, str(queue.folder), {})
    cluster = slurm.cluster_class()(silence_logs=False, **slurm.job_options())
    terms = PoolTerms(WorkerCapacity("to come", 1, {}, ""), 1, WorkerCount(0, 2))
    with queue.closed(WorkerPool(cluster, terms, queue.common(), queue.clock)) as pool:
        spec = cluster.new_spec["cls"]
        cluster.new_spec["cls"] = "no.such.module.Class"
        queue.adjust(pool, 2)
        (trouble,) = wait_for_trouble(queue)
        cluster.new_spec["cls"] = spec
        queue.clock.advance(trouble.pause)

        def are_submitted() -> bool:
            queue.adjust(pool, 2)
            return len(queue.lines("submitted")) == 2

        wait_until(are_submitted, describe=lambda: queue.events)


def test_worker_that_is_refused_is_a_failure_of_its_job(queue: FakeQueue) -> None:
    queue.write("jobs-start")
    with queue.pool(most=1, token="elsewhere") as pool:

        def has_failed_twice() -> bool:
            queue.adjust(pool, 1)
            queue.clock.advance(sum(trouble.pause for trouble in troubles(queue)))
            return len(troubles(queue)) == 2

        wait_until(has_failed_twice, describe=lambda: queue.events)
        first, second = troubles(queue)
        assert "does not see the Guild home" in second.trouble.problem
        assert second.pause > first.pause
        assert len(queue.lines("submitted")) == 2
        queue.wait_for("cancelled", 2)


def test_worker_that_joins_resets_the_failures(queue: FakeQueue) -> None:
    queue.write("sbatch-fails", "Batch job submission failed")
    with queue.pool(most=2) as pool:
        queue.adjust(pool, 1)
        assert "Batch job submission failed" in wait_for_trouble(queue)[0].trouble.problem
        (queue.folder / "sbatch-fails").unlink()
        queue.write("jobs-start")
        queue.clock.advance(troubles(queue)[0].pause)
        queue.adjust(pool, 1)
        wait_until(pool.workers, describe=lambda: queue.events)
        queue.adjust(pool, 0)
        queue.write("sbatch-fails", "Batch job submission failed")
        queue.adjust(pool, 1)
        assert [trouble.pause for trouble in wait_for_trouble(queue, 2)] == [FIRST_PAUSE] * 2


def test_command_that_hangs_delays_neither_workers_nor_the_end(queue: FakeQueue) -> None:
    queue.write("jobs-start")
    with queue.pool(most=2) as pool:
        queue.adjust(pool, 1)
        wait_until(pool.workers, describe=lambda: queue.events)
        queue.write("sbatch-hangs")
        queue.adjust(pool, 2)
        queue.wait_for("pids", 2)
        queue.events.clear()
        process = int(queue.lines("pids")[0])
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: not pool.workers(), describe=lambda: queue.events)  # a worker that leaves is still noticed
        assert any(isinstance(event, WorkersChanged) for event in queue.events)
    # The end of the block has a deadline.


def test_no_job_is_requested_in_the_pause_while_an_ended_job_is_cancelled(queue: FakeQueue) -> None:
    with queue.pool(most=1) as pool:
        queue.adjust(pool, 1)
        wait_for_jobs(queue, 1)
        queue.write("listed")
        queue.write("scancel-waits")
        queue.adjust(pool, 1)
        queue.wait_for("cancelled")
        queue.adjust(pool, 1)
        (queue.folder / "scancel-waits").unlink()
        wait_for_trouble(queue)
        assert len(queue.lines("submitted")) == 1


def test_prologue_may_have_any_comment(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "job-script-prologue": ["# don't load --resources GPU=9"],
        "worker-extra-args": ["--resources", "GPU=2"],
    }
    with fake_queue(tmp_path / "queue", monkeypatch, **settings) as queue, queue.pool(most=1) as pool:
        assert pool.prospects()[0].resources == {"GPU": 2.0}


def test_resources_that_cannot_be_read_are_reported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"worker-extra-args": ["--resources", "GPU"]}
    with (
        fake_queue(tmp_path / "queue", monkeypatch, **settings) as queue,
        pytest.raises(ClusterError, match="--resources 'GPU' cannot be read"),
        queue.pool(most=1),
    ):
        pass


def test_each_pool_has_certificates_of_its_own_which_are_removed_with_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, object] = {"interface": None, "scheduler-options": {}}
    with fake_queue(tmp_path / "queue", monkeypatch, **settings) as queue:
        certificates = queue.folder / "certificates"
        with queue.pool(most=1), queue.pool(most=1):
            folders = list(certificates.iterdir())
            assert len(folders) == 2
            assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
        assert not list(certificates.iterdir())


def test_second_cluster_in_a_folder_leaves_the_files_of_the_first_alone(tmp_path: pathlib.Path) -> None:
    first, folder = security_for(str(tmp_path))
    options = worker_options(first, folder)
    second, folder = security_for(str(tmp_path))
    worker_options(second, folder)
    authority = options[options.index("--tls-ca-file") + 1]
    assert pathlib.Path(authority).read_text() == first.tls_ca_file
