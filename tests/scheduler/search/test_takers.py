"""Which living schedulers would take the trials of a search."""

import contextlib
import errno
import json
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from guild_dask.home import claims, layout
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.host import processes
from guild_dask.monitor.schedulers import Scheduler
from guild_dask.monitor.state import Phase, State, WorkerState, as_data
from guild_dask.scheduler.search import takers as module
from guild_dask.scheduler.search.takers import Takers, takers, width_of_all
from tests.support.failing_files import Files
from tests.support.sandbox import run_command

# Guild's filters leave the files of attributes open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

WORKER = WorkerState("local", "here", 4, 0, {"gpu": 2})


def _live(home: str, scheduler: str, **facts: Any) -> None:
    """Shows this process as a scheduler with a state."""
    process = processes.identity(os.getpid())
    assert process
    Heartbeat(home, scheduler, process).renew()
    state = State(scheduler, process.host, process.pid, 1.0, **{"workers": (WORKER,), **facts})
    layout.scheduler_state(home, scheduler).write_text(json.dumps(as_data(state)))


def _make_prototype(home: pathlib.Path) -> None:
    proto = home / "runs" / "batch" / ".guild" / "proto"
    (proto / ".guild" / "attrs").mkdir(parents=True)
    (proto / ".guild" / "opref").write_text("guildfile:/project/guild.yml '' '' train\n")


@pytest.mark.parametrize(
    ("facts", "would_take"),
    [
        ({}, True),
        ({"phase": Phase.PAUSED}, True),
        ({"phase": Phase.DRAINING}, False),
        ({"phase": Phase.STOPPING}, False),
        ({"run_once": True}, False),  # it may end before the first trial is staged
        ({"trials_of": "another"}, False),
        ({"workers": (WorkerState("local", "here", 4, 0),)}, False),  # it has no GPU
        ({"workers": (), "slots_at_most": 8}, True),
        ({"filter": "op = train"}, True),
        ({"filter": "op = other"}, False),
        ({"filter": "tags contains big"}, False),
    ],
)
def test_scheduler_takes_trials_if_it_goes_on_selects_them_and_has_room(
    guild_home: pathlib.Path, facts: dict[str, Any], would_take: bool
) -> None:
    _make_prototype(guild_home)
    _live(str(guild_home), "one", **facts)
    found = takers(str(guild_home), "batch", {"gpu": 1})
    assert [each.id for each in found] == ["one"] * would_take
    assert not would_take or width_of_all(found, {"gpu": 1}) == (8 if "slots_at_most" in facts else 2)


def test_slots_of_all_schedulers_that_would_take_trials_count(guild_home: pathlib.Path) -> None:
    for name, facts in (("one", {}), ("other", {}), ("leaving", {"phase": Phase.DRAINING})):
        _live(str(guild_home), name, **facts)
    assert width_of_all(takers(str(guild_home), "batch", {}), {}) == 8


def test_search_does_not_propose_for_itself_and_without_schedulers_there_is_none(guild_home: pathlib.Path) -> None:
    assert takers(str(guild_home), "batch", {}) == []
    _live(str(guild_home), "batch")
    assert takers(str(guild_home), "batch", {}) == []


@pytest.mark.parametrize(("run", "found"), [("pipe", []), ("batch", ["one"]), ("another", ["one"])])
def test_scheduler_of_a_run_that_waits_for_the_search_does_not_take_its_trials(
    guild_home: pathlib.Path, run: str, found: list[str]
) -> None:
    # Its slot is not free before the search has ended.
    home = str(guild_home)
    _live(home, "one")
    process = processes.identity(os.getpid())
    assert process
    claims.mark_started(claims.write(layout.claims_folder(home), claims.Claim(run, "one", process, process)))
    above = {"RUN_ID": "pipe", "RUN_DIR": str(guild_home / "runs" / "pipe")}
    code = "from guild_dask.scheduler.search.takers import takers\n"
    code += f"print([each.id for each in takers({home!r}, 'batch', {{}})])"
    shell = ["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, code]  # it stays the parent
    assert run_command(shell, {**os.environ, **above}, guild_home).output == f"{found}\n"


@pytest.mark.parametrize("published", ["one", "none"])
def test_scheduler_that_takes_trials_does_so_whatever_file_cannot_be_read(
    guild_home: pathlib.Path, failing: Files, published: str
) -> None:
    # Without it, the search would open a cluster of its own.
    home = str(guild_home)
    _make_prototype(guild_home)
    _live(home, "one", filter="op = train")
    process = processes.identity(os.getpid())
    assert process
    if published == "none":  # it has started the search right after its own start
        layout.scheduler_state(home, "one").unlink()
        claims.mark_started(claims.write(layout.claims_folder(home), claims.Claim("batch", "one", process, process)))
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        with failing.failing(chosen), contextlib.suppress(OSError, HomeUnavailable):
            found = [each.id for each in takers(home, "batch", {})]
            assert found == ["one"], f"file {chosen} could not be read"
    assert chosen > 5


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), HomeUnavailable("cannot read run proto")])
def test_search_asks_again_for_schedulers_if_it_cannot_see_them_and_keeps_those_that_it_saw(
    guild_home: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    _live(str(guild_home), "one")
    answers: list[Exception | None] = [error, error, None, error]

    def ask(home: str, batch: str, requests: Mapping[str, float]) -> list[Scheduler]:
        answer = answers.pop(0) if answers else None
        if answer:
            raise answer
        return takers(home, batch, requests)

    monkeypatch.setattr(module, "takers", ask)
    found = Takers(str(guild_home), "batch", {}, lambda: False)
    assert found.find()
    assert caplog.text.count("The search cannot see which schedulers would take its trials") == 1
    assert not found.are_gone()
    assert not answers
    assert found.width() == 4
    layout.heartbeat(str(guild_home), "one").unlink()
    assert found.are_gone()


def test_stopped_search_does_not_wait_until_it_sees_schedulers(
    guild_home: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse(home: str, _batch: str, _requests: Mapping[str, float]) -> list[Scheduler]:
        asked.append(home)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(module, "takers", refuse)
    assert not Takers(str(guild_home), "batch", {}, lambda: len(asked) > 1).find()
