"""The clock jumps, by days and in both directions: nothing starts twice, nothing waits for the clock to come back."""

import os
import pathlib

import pytest

from guild_dask.host import files
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, stage, statuses

JOURNAL = """
note:
  exec: sh -c 'echo $RUN_ID >> ../../../folder/journal; until [ -e ../../../folder/go-$RUN_ID ]; do sleep 0.1; done'
"""

# Of the package faketime: it answers what a process asks for the time of day, and leaves the monotonic clock alone.
_LIBRARY = "faketime/libfaketimeMT.so.1"


@pytest.fixture
def clock(user: Sandbox, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A file with the amount by which the clock of this user's processes is wrong."""
    found = [*pathlib.Path("/usr/lib").glob(f"*/{_LIBRARY}"), *pathlib.Path("/usr/lib").glob(_LIBRARY)]
    if not found:
        message = "the package faketime is not installed"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    file = user.folder / "clock"
    file.write_text("+0\n")
    monkeypatch.setenv("LD_PRELOAD", str(found[0]))
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(file))
    monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    monkeypatch.setenv("DONT_FAKE_MONOTONIC", "1")
    return file


def test_runs_start_once_each_whatever_the_clock_does(user: Sandbox, guild: Guild, clock: pathlib.Path) -> None:
    a_project(user, JOURNAL)
    started = {}
    with guild.started(f"run dask:scheduler workers=4 poll-interval=0.5 {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("Waiting for staged runs")
        for run_id, jump in (("now", "+0"), ("later", "+3d"), ("earlier", "-3d"), ("again", "+0")):
            files.write(str(clock), f"{jump}\n".encode())  # at once: processes read it all the time
            stage(guild, "note", run_id)
            started[run_id] = jump
            wait_until(lambda: set(_journal(user)) == set(started), describe=lambda: _journal(user))
        for run_id in started:
            (user.folder / f"go-{run_id}").touch()
        wait_until(lambda: set(statuses(user).values()) == {"completed"}, describe=lambda: statuses(user))
        assert sorted(_journal(user)) == sorted(started)
    assert _days_between(user, "now", "later") > 2  # so it did jump, for the scheduler's runs too
    assert _days_between(user, "earlier", "now") > 2


def _days_between(user: Sandbox, first: str, second: str) -> float:
    first_started, second_started = (
        int((user.guild_home / "runs" / run_id / ".guild" / "attrs" / "started").read_text())
        for run_id in (first, second)
    )
    return (second_started - first_started) / 86400e6


def _journal(user: Sandbox) -> list[str]:
    file = user.folder / "journal"
    return file.read_text().split() if file.exists() else []
