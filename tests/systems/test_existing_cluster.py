"""Runs on a Dask cluster that another user has started, and the state of the cluster afterwards."""

import contextlib
import os
import pathlib
import shlex
import signal
import sys
from collections.abc import Iterator

import psutil
import pytest
from distributed import Client

from guild_dask.cluster.base import ClusterError, Common, Timeouts
from guild_dask.cluster.existing import open_existing
from guild_dask.home import layout, trials
from guild_dask.plan.objectives import Objective
from guild_dask.settings.cluster_spec import cluster_for_text
from tests.support.sandbox import Guild, Sandbox, Started, free_port, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses
from tests.systems.dask_processes import DaskProcesses, dask_processes
from tests.systems.journal import Journal, Life

SCHEDULER = f"run dask:scheduler {NO_DASHBOARD} poll-interval=0.5 lease=2 -y"

TRAIN = """
train:
  exec: >-
    sh -c 'until test -e $GUILD_HOME/enough; do sleep 0.1; done; echo "loss: ${x}"'
  flags:
    x: 1
"""


@pytest.fixture
def cluster(user: Sandbox) -> Iterator[DaskProcesses]:
    """A Dask scheduler without workers."""
    with dask_processes(user) as cluster:
        yield cluster


def worker_of(life: Life, workers: list[Started]) -> Started:
    """Returns the worker that started a run's process."""
    parents = [process.pid for process in psutil.Process(life.pid).parents()]
    return next(worker for worker in workers if worker.pid in parents)


def test_runs_go_where_their_resources_are(
    user: Sandbox, guild: Guild, journal: Journal, cluster: DaskProcesses
) -> None:
    cluster.start_worker("plain")
    cluster.start_worker("large", "--resources GPU=2")
    stage(guild, "work seconds=0.2", "aaa", "bbb")
    stage(guild, "work seconds=0.2", "ccc", options="--tag dask:GPU=2")
    stage(guild, "work seconds=0.2", "ddd", options="--tag dask:GPU=3")
    done = guild(f"{SCHEDULER} cluster={cluster.address} run-once=yes")
    assert "Cluster resources: GPU=2" in done.output
    assert "requests GPU=3" in done.output
    journal.check(["aaa", "bbb", "ccc"])
    assert statuses(user) == {"aaa": "completed", "bbb": "completed", "ccc": "completed", "ddd": "staged"}


def test_cluster_is_left_as_it_was_found(guild: Guild, journal: Journal, cluster: DaskProcesses) -> None:
    worker = cluster.start_worker("one")
    stage(guild, "work seconds=0.2", "aaa")
    guild(f"{SCHEDULER} cluster=scheduler-file:{cluster.file} run-once=yes")
    journal.check(["aaa"])
    assert worker.is_running
    with Client(cluster.address) as client:
        assert client.submit(sum, [1, 2]).result() == 3


@contextlib.contextmanager
def a_long_run(guild: Guild, journal: Journal, cluster: DaskProcesses) -> Iterator[Started]:
    """Yields a scheduler whose only run, aaa, has started and does not end by itself."""
    stage(guild, "work seconds=600", "aaa")
    with guild.started(f"{SCHEDULER} cluster={cluster.address}") as scheduler:
        journal.wait_for("aaa")
        yield scheduler


def test_run_of_a_killed_worker_goes_on_elsewhere(
    user: Sandbox, guild: Guild, journal: Journal, cluster: DaskProcesses
) -> None:
    workers = [cluster.start_worker(name) for name in ("one", "two")]
    stage(guild, "work seconds=4", "aaa")
    with guild.started(f"{SCHEDULER} cluster={cluster.address} run-once=yes") as scheduler:
        worker_of(journal.wait_for("aaa"), workers).kill()
        assert scheduler.wait().exit_code == 0
    journal.check(["aaa"])
    assert len(journal.lives("aaa")) == 2
    assert statuses(user) == {"aaa": "completed"}


_BLIND = """
import os, sys
if "guild_dask.scheduler" in sys.orig_argv:
    from distributed import Client
    look = Client.scheduler_info
    def look_unless_blind(client, *args, **kwargs):
        if os.path.exists({blind!r}):
            raise OSError("blind")
        return look(client, *args, **kwargs)
    Client.scheduler_info = look_unless_blind
"""


@pytest.fixture
def blind(user: Sandbox, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A file that hides workers from schedulers for as long as it exists."""
    file = user.root / "blind"
    (user.root / "sitecustomize.py").write_text(_BLIND.format(blind=str(file)))
    monkeypatch.setenv("PYTHONPATH", str(user.root))
    return file


@pytest.mark.parametrize("can_be_tried", [True, False])
def test_run_that_dask_sends_to_a_worker_again_is_not_taken_for_ended(
    journal: Journal, guild: Guild, cluster: DaskProcesses, blind: pathlib.Path, can_be_tried: bool
) -> None:
    # Dask gives a new worker at an old address the tasks of the old one, unless they are cancelled in time. If the new
    # one refuses the task, this must not count as the run's end.
    port = f"--worker-port {free_port()}"
    worker = cluster.start_worker("one", port)
    stage(guild, "work seconds=4", "aaa")
    with guild.started(f"{SCHEDULER} cluster={cluster.address} run-once=yes") as scheduler:
        journal.wait_for("aaa")
        blind.touch()
        (output,) = pathlib.Path(os.environ["GUILD_HOME"]).glob(layout.run_output("runs/*"))
        away = None if can_be_tried else output.rename(output.with_name("away"))
        worker.kill()
        cluster.start_worker("one", port)
        scheduler.wait_for_output("is unreachable (")
        if away:
            away.rename(output)
        blind.unlink()
        assert scheduler.wait().exit_code == 0
    journal.check(["aaa"])
    assert [life.attempt for life in journal.lives("aaa")] == [1, 2]
    assert ("its worker was restarted" if can_be_tried else "(No such file or directory)") in scheduler.output
    assert "1 run(s) completed, 0 failed" in scheduler.output


def test_worker_that_is_told_to_end_ends_its_runs_first(
    user: Sandbox, guild: Guild, journal: Journal, cluster: DaskProcesses
) -> None:
    # As Slurm ends a job: only the worker gets the signal, and later the whole job is killed.
    worker = cluster.start_worker("one")
    with a_long_run(guild, journal, cluster) as scheduler:
        os.kill(worker.pid, signal.SIGTERM)
        worker.wait()
        wait_until(lambda: statuses(user) == {"aaa": "staged"}, describe=scheduler.so_far)
        scheduler.wait_for_output("Run aaa is staged again for attempt 2 (its host ended it)")


def test_runs_go_on_when_their_scheduler_is_killed_and_started_again(
    user: Sandbox, guild: Guild, journal: Journal, cluster: DaskProcesses
) -> None:
    cluster.start_worker("one")
    stage(guild, "work seconds=4", "aaa")
    stage(guild, "work seconds=0.2", "bbb")
    with guild.started(f"{SCHEDULER} cluster={cluster.address}") as scheduler:
        journal.wait_for("aaa")
        scheduler_process(user).kill()
        scheduler.wait()
    with guild.started(f"{SCHEDULER} cluster={cluster.address}") as scheduler:
        # The worker's only slot is used by a run that the second scheduler did not start.
        wait_until(lambda: statuses(user) == {"aaa": "completed", "bbb": "completed"}, describe=lambda: str(journal))
    journal.check(["aaa", "bbb"])
    (first,), (second,) = journal.lives("aaa"), journal.lives("bbb")
    assert second.begun > first.last


def test_runs_outlive_the_dask_scheduler_and_others_wait_for_the_next_one(
    user: Sandbox, guild: Guild, journal: Journal, cluster: DaskProcesses
) -> None:
    cluster.start_worker("one")
    stage(guild, "work seconds=4", "aaa")
    stage(guild, "work seconds=0.2", "bbb")
    with guild.started(f"{SCHEDULER} cluster=scheduler-file:{cluster.file}") as scheduler:
        journal.wait_for("aaa")
        cluster.scheduler.kill()
        wait_until(lambda: statuses(user) == {"aaa": "completed", "bbb": "staged"}, describe=scheduler.so_far)
        cluster.start_scheduler()
        cluster.start_worker("two")
        wait_until(lambda: statuses(user)["bbb"] == "completed", describe=scheduler.so_far)
    journal.check(["aaa", "bbb"])
    assert "Traceback" not in scheduler.output


def test_stopping_the_scheduler_stops_its_runs(
    user: Sandbox, guild: Guild, journal: Journal, cluster: DaskProcesses
) -> None:
    worker = cluster.start_worker("one")
    with a_long_run(guild, journal, cluster) as scheduler:
        scheduler.signal(signal.SIGINT)
        scheduler.wait()
    assert statuses(user) == {"aaa": "terminated"}
    assert worker.is_running


def test_worker_without_guild_dask_is_named_and_gets_no_run(
    guild: Guild, journal: Journal, cluster: DaskProcesses, user: Sandbox
) -> None:
    code = "import sys; sys.modules['guild_dask'] = None; from distributed.cli.dask_worker import main; main()"
    options = f"{cluster.address} --name stranger --nthreads 1 --no-nanny --no-dashboard"
    with Guild(user.root, (sys.executable, "-c", code)).started(options) as stranger:
        stranger.wait_for_output("Registered to")
        stage(guild, "work seconds=0.2", "aaa")
        with guild.started(f"{SCHEDULER} cluster={cluster.address}") as scheduler:
            scheduler.wait_for_output("stranger")
            scheduler.wait_for_output("does not have guild-dask: install guild-dask")
            cluster.start_worker("friend")
            wait_until(lambda: statuses(user) == {"aaa": "completed"}, describe=lambda: str(scheduler.so_far()))


def test_address_where_nobody_listens_is_told() -> None:
    choice = cluster_for_text("tcp://127.0.0.1:1")
    with pytest.raises(ClusterError, match=r"cannot reach the Dask scheduler of cluster=tcp://127\.0\.0\.1:1"):
        open_existing(choice, Common("home", "token", 60, lambda _: None, timeouts=Timeouts(connect=0.5)))


def test_environment_of_a_run_is_that_of_its_worker(
    guild: Guild, user: Sandbox, cluster: DaskProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_project(user, f"show:\n  exec: {shlex.quote(sys.executable)} -c 'import os; print(dict(os.environ))'\n")
    monkeypatch.setenv("OF_THE_WORKER", "yes")
    cluster.start_worker("one", "--nanny")
    monkeypatch.delenv("OF_THE_WORKER")
    monkeypatch.setenv("OF_THE_SCHEDULER", "yes")
    stage(guild, "show", "aaa")
    guild(f"{SCHEDULER} cluster={cluster.address} run-once=yes")
    shown = guild("cat --output aaa").output
    assert "OF_THE_WORKER" in shown
    assert "OF_THE_SCHEDULER" not in shown
    assert "OMP_NUM_THREADS" not in shown  # a nanny sets it


def test_each_worker_gives_out_its_own_gpus(
    user: Sandbox, guild: Guild, cluster: DaskProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Devices have the same names on all hosts. Here two workers stand for two jobs with their own devices.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    show = 'echo "$RUN_ID sees [$CUDA_VISIBLE_DEVICES]"; touch $GUILD_HOME/$RUN_ID.here; '
    show += "until [ $(ls $GUILD_HOME/*.here | wc -l) -ge 4 ]; do sleep 0.1; done"
    a_project(user, f"show:\n  exec: sh -c '{show}'\n")
    for name in ("one", "two"):
        cluster.start_worker(name, "--nthreads 2")
    stage(guild, "show", "aaa", "bbb", "ccc", options="--tag dask:gpu=1")
    stage(guild, "show", "ddd")
    done = guild(f"{SCHEDULER} cluster={cluster.address} run-once=yes gpus=auto")
    seen = sorted(line[4:] for line in done.output.splitlines() if " sees " in line)
    assert len([text for text in seen if text in ("sees [0]", "sees [1]")]) == 3
    assert "sees []" in seen
    assert max(seen.count("sees [0]"), seen.count("sees [1]")) == 2


@pytest.mark.parametrize("has_scheduler", [False, True])
def test_width_of_a_search_follows_the_workers(
    user: Sandbox, guild: Guild, cluster: DaskProcesses, has_scheduler: bool
) -> None:
    # The trials wait for a file, and more of them are staged only if there are slots for them.
    a_project(user, TRAIN)
    cluster.start_worker("one")
    search = "run train x=[1:99] --optimizer dask:random --max-trials 6 --run-id batch -y"
    own = f"-Fo cluster={cluster.address} -Fo {NO_DASHBOARD} -Fo poll-interval=0.5"
    with contextlib.ExitStack() as stack:
        if has_scheduler:
            scheduler = stack.enter_context(guild.started(f"{SCHEDULER} cluster={cluster.address}"))
            scheduler.wait_for_output("Waiting for staged runs")
        searching = stack.enter_context(guild.started(search if has_scheduler else f"{search} {own}"))
        wait_until(lambda: _states_of_trials(user) == ["running"], describe=searching.so_far)
        second = cluster.start_worker("two", "--nthreads 2")
        wait_until(lambda: _states_of_trials(user) == ["running"] * 3, describe=searching.so_far)
        second.kill()  # its two trials are lost, and wait for the slot that is left; none is added
        wait_until(lambda: _states_of_trials(user) == ["running", "waiting", "waiting"], describe=searching.so_far)
        (user.guild_home / "enough").touch()
        ended = searching.wait()
    assert "The search is over: it has had 6 trial(s)" in ended.output
    assert _states_of_trials(user) == ["completed"] * 6
    assert ("Proposing trials for scheduler" in ended.output) == has_scheduler


def _states_of_trials(user: Sandbox) -> list[str]:
    found = trials.TrialReader(str(user.guild_home), "batch", (Objective("loss"),)).read()
    return sorted(trial.state.value for trial in found)
