"""Runs in jobs of a real Slurm, while jobs, nodes and schedulers die."""

import signal

import pytest
import yaml

from tests.support.account import as_user
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses
from tests.systems.journal import Journal
from tests.systems.site import configure
from tests.systems.slurm import Slurm

SCHEDULER = f"run dask:scheduler cluster=slurm {NO_DASHBOARD} poll-interval=0.5 lease=3 -y"

# Slurm needs up to a minute to consider a node dead and start its job elsewhere.
LONG = 150.0


@pytest.fixture
def site(slurm: Slurm, user: Sandbox, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """A Slurm, and a user with a configuration for it."""
    for name, value in slurm.variables.items():
        monkeypatch.setenv(name, value)
    configure_for(user, slurm)
    return slurm


def configure_for(user: Sandbox, slurm: Slurm, **settings: object) -> None:
    address = {"scheduler_options": {"host": slurm.network.address}, "interface": "eth0"}
    configure(user, "slurm", **{**address, **settings})


def test_runs_run_on_nodes_and_jobs_are_given_back(site: Slurm, user: Sandbox, guild: Guild, journal: Journal) -> None:
    stage(guild, "work seconds=2", "aaa", "bbb", "ccc")
    with guild.started(f"{SCHEDULER} workers=2 run-once=yes") as scheduler:
        first = journal.wait_for("aaa")
        host = site.hosts[first.host]
        there = host.listening()
        assert set(there) == {host.address}, "the configured interface"
        assert len(there) <= 2, "one port for each worker"
        assert f"running ({first.host})" in guild("runs").output
        assert scheduler.wait().exit_code == 0
    journal.check(["aaa", "bbb", "ccc"])
    assert {life.host for life in journal.lives()} <= set(site.hosts)
    assert not list(user.guild_home.glob("runs/*/certificates/.*"))
    assert set(statuses(user).values()) == {"completed"}
    wait_until(lambda: not site.jobs(), describe=lambda: f"the end of {site.jobs()}")


def test_jobs_are_as_many_as_waiting_runs_need(site: Slurm, guild: Guild, journal: Journal, user: Sandbox) -> None:
    configure_for(user, site, worker_extra_args=["--resources", "GPU=2"], job_extra_directives=["--gres=gpu:2"])
    with guild.started(f"{SCHEDULER} workers=0..3") as scheduler:
        scheduler.wait_for_output("Waiting for staged runs")
        assert not site.jobs()
        stage(guild, "work seconds=1", "aaa", options="--tag dask:GPU=2")
        journal.wait_for("aaa")
        assert len(site.jobs()) == 1
        stage(guild, "work seconds=3", "bbb", "ccc", options="--tag dask:GPU=2")
        wait_until(lambda: len(journal.lives()) == 3, describe=lambda: str(scheduler.so_far()))
        wait_until(lambda: set(statuses(user).values()) == {"completed"}, describe=lambda: str(journal))
    journal.check(["aaa", "bbb", "ccc"])
    wait_until(lambda: not site.jobs(), describe=lambda: f"the end of {site.jobs()}")


def test_gpus_of_a_job_are_given_out_to_its_runs(site: Slurm, guild: Guild, user: Sandbox) -> None:
    # Slurm tells a job which GPUs it has; each of its runs gets one of them.
    show = 'echo "$RUN_ID sees [$CUDA_VISIBLE_DEVICES]"; touch $GUILD_HOME/$RUN_ID.here; '
    show += "until [ $(ls $GUILD_HOME/*.here | wc -l) -ge 3 ]; do sleep 0.1; done"
    a_project(user, f"show:\n  exec: sh -c '{show}'\n")
    configure_for(user, site, cores=3, job_extra_directives=["--gres=gpu:2"])
    stage(guild, "show", "aaa", "bbb", options="--tag dask:gpu=1")
    stage(guild, "show", "ccc")
    done = guild(f"{SCHEDULER} workers=1 run-once=yes gpus=auto resources=gpu=2")
    seen = {line[:3]: line[9:] for line in done.output.splitlines() if " sees " in line}
    assert sorted((seen["aaa"], seen["bbb"])) == ["[0]", "[1]"]
    assert seen["ccc"] == "[]"


def test_run_that_no_node_can_hold_says_so(site: Slurm, guild: Guild, journal: Journal, user: Sandbox) -> None:
    configure_for(user, site, worker_extra_args=["--resources", "GPU=1"], job_extra_directives=["--gres=gpu:1"])
    stage(guild, "work seconds=0.2", "aaa", options="--tag dask:GPU=2")
    stage(guild, "work seconds=0.2", "bbb", options="--tag dask:GPU=1")
    done = guild(f"{SCHEDULER} workers=0..1 run-once=yes")
    assert "requests GPU=2" in done.output
    assert statuses(user) == {"aaa": "staged", "bbb": "completed"}


def test_pools_come_each_for_the_runs_that_need_them(
    site: Slurm, guild: Guild, journal: Journal, user: Sandbox
) -> None:
    # As in docs/clusters.md: the second pool has its own section with the settings that differ.
    gpus = {"queue": "gpu", "worker-extra-args": ["--resources", "GPU=2"], "job-extra-directives": ["--gres=gpu:2"]}
    pools = {
        "cpu": {"cluster": "slurm", "workers": "0..2"},
        "gpu": {"cluster": "slurm", "workers": "0..2", "config-name": "slurm-gpu"},
    }
    file = user.home / ".config" / "dask" / "jobqueue.yaml"
    configured = yaml.safe_load(file.read_text())
    configured["jobqueue"]["slurm-gpu"] = gpus
    file.write_text(yaml.safe_dump({**configured, "guild-dask": {"pools": pools}}))
    stage(guild, "work seconds=2", "aaa", options="--tag dask:GPU=2")
    with guild.started(f"run dask:scheduler {NO_DASHBOARD} poll-interval=0.5 lease=3 -y"):
        journal.wait_for("aaa")
        assert site.command("squeue", "-h", "-o", "%P").split() == ["gpu"]
        stage(guild, "work seconds=0.2", "bbb")
        wait_until(lambda: statuses(user) == {"aaa": "completed", "bbb": "completed"}, describe=lambda: statuses(user))
    journal.check(["aaa", "bbb"])


def test_run_is_stopped_from_any_host_and_all_with_their_scheduler(
    site: Slurm, guild: Guild, journal: Journal, user: Sandbox
) -> None:
    stage(guild, "work seconds=600", "aaa", "bbb")
    with guild.started(f"{SCHEDULER} workers=2") as scheduler:
        first = journal.wait_for("aaa")
        journal.wait_for("bbb")
        other = next(host for name, host in site.hosts.items() if name != first.host)
        Guild(user.root, other.command(*as_user("guild-dask")))("stop aaa")
        wait_until(lambda: statuses(user)["aaa"] == "terminated", describe=scheduler.so_far)
        assert statuses(user)["bbb"] == "running"
        scheduler.signal(signal.SIGINT)
        scheduler.wait()
    wait_until(lambda: statuses(user)["bbb"] == "terminated", describe=scheduler.so_far)
    assert [life.attempt for life in journal.lives()] == [1, 1]
    wait_until(lambda: not site.jobs(), describe=lambda: f"the end of {site.jobs()}")


def test_partition_that_does_not_exist_is_told_in_one_message(site: Slurm, guild: Guild, user: Sandbox) -> None:
    configure_for(user, site, queue="nosuch")
    stage(guild, "work seconds=0.2", "aaa")
    with guild.started(f"{SCHEDULER} workers=2") as scheduler:
        scheduler.wait_for_output("invalid partition specified: nosuch")
    assert scheduler.output.count("invalid partition specified: nosuch") == 1
    assert "Traceback" not in scheduler.output
    assert statuses(user) == {"aaa": "staged"}


def test_job_whose_worker_cannot_start_is_told_with_its_reason(site: Slurm, guild: Guild, user: Sandbox) -> None:
    configure_for(user, site, python="/no/such/python")
    stage(guild, "work seconds=0.2", "aaa")
    with guild.started(f"{SCHEDULER} workers=0..2") as scheduler:
        scheduler.wait_for_output("/no/such/python: No such file or directory")
    assert "Traceback" not in scheduler.output
    assert statuses(user) == {"aaa": "staged"}


def test_runs_go_on_elsewhere_when_a_job_is_cancelled_a_node_set_down_and_another_loses_power(
    site: Slurm, guild: Guild, journal: Journal, user: Sandbox
) -> None:
    configure_for(user, site, job_extra_directives=["--exclusive"])  # each run has a node of its own
    runs = ("aaa", "bbb", "ccc")
    stage(guild, "work seconds=5", *runs)
    with guild.started(f"{SCHEDULER} workers=1..3 run-once=yes") as scheduler:
        cancelled, set_down, dark = [journal.wait_for(run_id).host for run_id in runs]
        site.hosts[dark].switch_off()
        site.command("scancel", f"--nodelist={cancelled}")
        site.command("scontrol", "update", f"NodeName={set_down}", "State=DOWN", "Reason=test")
        assert scheduler.wait(LONG).exit_code == 0
    journal.check(runs)
    assert [life.attempt for life in journal.lives("aaa")] == [1, 2]
    assert {journal.lives(run_id)[-1].host for run_id in runs} == {cancelled}
    assert set(statuses(user).values()) == {"completed"}


def test_node_that_slurm_takes_for_dead_does_not_run_its_run_twice(
    site: Slurm, guild: Guild, journal: Journal, user: Sandbox
) -> None:
    # Slurm starts the job again elsewhere while the first one still runs: two workers have the same name.
    stage(guild, "work seconds=60", "aaa")
    with guild.started(f"{SCHEDULER} workers=1 run-once=yes") as scheduler:
        first = journal.wait_for("aaa")
        site.kill_slurmd(first.host)
        wait_until(lambda: site.states()[first.host].startswith("down"), LONG, site.states)
        assert scheduler.wait(LONG).exit_code == 0
    journal.check(["aaa"])
    assert statuses(user) == {"aaa": "completed"}


def test_runs_go_on_in_their_jobs_when_the_scheduler_is_killed_and_started_again(
    site: Slurm, guild: Guild, journal: Journal, user: Sandbox
) -> None:
    stage(guild, "work seconds=6", "aaa")
    with guild.started(f"{SCHEDULER} workers=1") as scheduler:
        journal.wait_for("aaa")
        scheduler_process(user).kill()
        scheduler.wait()
    stage(guild, "work seconds=0.2", "bbb")
    done = guild(f"{SCHEDULER} workers=1 run-once=yes")
    wait_until(lambda: set(statuses(user).values()) == {"completed"}, describe=lambda: f"{journal}\n{done}")
    journal.check(["aaa", "bbb"])
    wait_until(lambda: not site.jobs(), LONG, lambda: f"the end of {site.jobs()}")
