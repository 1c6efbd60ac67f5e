"""Runs on hosts that are reached by SSH, and of which one is disconnected."""

import psutil
import pytest

from tests.support.account import as_user
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, stage
from tests.systems.journal import Journal
from tests.systems.openssh import OpenSSH

SCHEDULER = f"run dask:scheduler cluster=ssh:h1,h2 workers=1 {NO_DASHBOARD} poll-interval=0.5 lease=3 -y"

LONG = 150.0


@pytest.fixture
def guild(openssh: OpenSSH, user: Sandbox, journal: Journal) -> Guild:
    """Guild on the head, where the user can log in to the other hosts."""
    return Guild(user.root, openssh.head.command(*as_user("guild")))


def test_runs_run_on_all_hosts_and_leave_nothing(
    guild: Guild, openssh: OpenSSH, journal: Journal, user: Sandbox
) -> None:
    stage(guild, "work seconds=2", "aaa", "bbb")
    with guild.started(f"{SCHEDULER} run-once=yes") as scheduler:
        first = journal.wait_for("aaa")
        assert f"running ({first.host})" in guild("runs").output
        assert scheduler.wait().exit_code == 0
    journal.check(["aaa", "bbb"])
    assert {life.host for life in journal.lives()} == {"h1", "h2"}
    assert not list(user.guild_home.glob("runs/*/certificates/*"))
    wait_until(lambda: not left(openssh), describe=lambda: f"the end of {left(openssh)}")


def left(openssh: OpenSSH) -> list[psutil.Process]:
    return [process for host in openssh.hosts.values() for process in host.processes("python")]


def test_run_of_a_host_that_is_cut_off_runs_once_at_a_time(
    guild: Guild, openssh: OpenSSH, journal: Journal, user: Sandbox
) -> None:
    # The host loses the network and the Guild home, as on a site with a network file system.
    stage(guild, "work seconds=10", "aaa")
    with guild.started(f"{SCHEDULER} run-once=yes") as scheduler:
        first = journal.wait_for("aaa")
        host = openssh.hosts[first.host]
        host.cut_off()
        host.hide(user.guild_home)
        assert scheduler.wait(LONG).exit_code == 0
    journal.check(["aaa"])
    assert journal.lives("aaa")[-1].host != first.host


def test_run_goes_on_through_a_short_cut(guild: Guild, openssh: OpenSSH, journal: Journal, user: Sandbox) -> None:
    stage(guild, "work seconds=8", "aaa")
    with guild.started(f"{SCHEDULER} run-once=yes") as scheduler:
        first = journal.wait_for("aaa")
        host = openssh.hosts[first.host]
        host.cut_off()
        wait_until(lambda: journal.lives("aaa")[0].last > first.begun + 3)
        host.connect()
        assert scheduler.wait(LONG).exit_code == 0
    assert [life.attempt for life in journal.lives("aaa")] == [1]


def test_run_goes_on_without_its_ssh_and_is_tried_again_without_its_worker(
    guild: Guild, openssh: OpenSSH, journal: Journal, user: Sandbox
) -> None:
    stage(guild, "work seconds=4", "aaa")
    with guild.started(f"{SCHEDULER} run-once=yes") as scheduler:
        first = journal.wait_for("aaa")
        for process in openssh.head.processes("BatchMode"):
            process.kill()
        wait_until(lambda: journal.lives("aaa")[0].last > first.begun + 1)
        for process in openssh.hosts[first.host].processes("private_worker"):
            process.kill()
        assert scheduler.wait(LONG).exit_code == 0
    journal.check(["aaa"])
    assert [life.attempt for life in journal.lives("aaa")] == [1, 2]
    assert "Run aaa is staged again for attempt 2 (its worker died)" in scheduler.output


def test_host_that_cannot_be_reached_is_named(guild: Guild, openssh: OpenSSH, journal: Journal) -> None:
    stage(guild, "work seconds=0.2", "aaa")
    openssh.hosts["h2"].switch_off()
    done = guild(f"{SCHEDULER} run-once=yes", timeout=LONG)
    assert "h2" in done.output
    assert "Traceback" not in done.output
    journal.check(["aaa"])
