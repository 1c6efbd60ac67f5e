"""Which living schedulers would take the trials of a search."""

import json
import os
import pathlib
from typing import Any

import pytest

from guild_dask.home import layout
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.host import processes
from guild_dask.monitor.state import Phase, State, WorkerState, as_data
from guild_dask.scheduler.search.takers import takers, width_of_all

# Guild's filters leave the files of attributes open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

WORKER = WorkerState("local", "here", 4, 0, {"gpu": 2})


def _live(home: str, scheduler: str, **facts: Any) -> None:
    """Shows this process as a scheduler with a state."""
    process = processes.identity(os.getpid())
    assert process
    Heartbeat(home, scheduler, process).renew()
    state = State(scheduler, process.host, process.pid, 1.0, **{"workers": (WORKER,), **facts})
    layout.scheduler_state(home, scheduler).write_text(json.dumps(as_data(state)))


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
    proto = guild_home / "runs" / "batch" / ".guild" / "proto"
    (proto / ".guild" / "attrs").mkdir(parents=True)
    (proto / ".guild" / "opref").write_text("guildfile:/project/guild.yml '' '' train\n")
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
