"""Runs that come after other runs: which must wait, which can never start, and that no other run is held."""

import os
import pathlib
import tempfile
import time
from collections.abc import Container, Iterable, Mapping
from unittest import mock

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.home import claims, lookup, run_directory
from guild_dask.host import processes
from guild_dask.plan.dependencies import Found, Links, RunStatus, decide
from guild_dask.plan.reasons import AfterAmbiguous, AfterCycle, AfterFailed, AfterRuns, AfterUnknown, Hold
from guild_dask.plan.tags import After
from guild_dask.scheduler.dependency_lookup import DependencyLookup
from tests.home.test_run_directory import make_run
from tests.support.failing_files import unreadable_file
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, stage, statuses

checked = settings(deadline=None, max_examples=200)


def holds(found: Mapping[str, Found], **links: Links) -> Mapping[str, Hold]:
    return decide(links, found).holds


def after(*runs: str) -> Links:
    return Links(tuple(After(run) for run in runs))


def one(status: RunStatus, run_id: str = "xxx") -> dict[str, Found]:
    return {"x": Found(status, (run_id,))}


@pytest.mark.parametrize(
    ("status", "by_tag", "however", "by_operation"),
    [
        (RunStatus.STAGED, AfterRuns(("xxx",)), AfterRuns(("xxx",)), AfterRuns(("xxx",))),
        (RunStatus.GOES_ON, AfterRuns(("xxx",)), AfterRuns(("xxx",)), AfterRuns(("xxx",))),
        (RunStatus.COMPLETED, None, None, None),
        (RunStatus.FAILED, AfterFailed("xxx", "failed"), None, AfterFailed("xxx", "failed")),
        # Guild accepts the files of a terminated run.
        (RunStatus.TERMINATED, AfterFailed("xxx", "terminated"), None, None),
        (RunStatus.UNKNOWN, AfterUnknown("x"), AfterUnknown("x"), None),
        (RunStatus.AMBIGUOUS, AfterAmbiguous("x", ("xxx",)), AfterAmbiguous("x", ("xxx",)), None),
    ],
)
def test_status_of_the_predecessor_decides(
    status: RunStatus, by_tag: Hold | None, however: Hold | None, by_operation: Hold | None
) -> None:
    assert holds(one(status), aaa=after("x")).get("aaa") == by_tag
    assert holds(one(status), aaa=Links((After("x", however_it_ends=True),))).get("aaa") == however
    assert holds(one(status), aaa=Links(needs=("x",))).get("aaa") == by_operation


def test_failed_predecessor_is_the_reason_although_others_still_run() -> None:
    found = {"b": Found(RunStatus.GOES_ON, ("bbb",)), "c": Found(RunStatus.FAILED, ("ccc",))}
    assert holds(found, aaa=after("b", "c")) == {"aaa": AfterFailed("ccc", "failed")}


def test_decision_tells_whether_a_predecessor_is_still_running() -> None:
    assert decide({"aaa": after("x")}, one(RunStatus.GOES_ON)).waits_for_active
    assert not decide({"aaa": after("x")}, one(RunStatus.STAGED)).waits_for_active


def test_run_that_comes_after_itself_is_a_cycle() -> None:
    assert holds(one(RunStatus.STAGED, "aaa"), aaa=after("x")) == {"aaa": AfterCycle(("aaa",))}


def test_runs_of_a_cycle_name_it_and_others_wait_for_them() -> None:
    found = {name: Found(RunStatus.STAGED, (name,)) for name in ("aaa", "bbb", "ccc", "ddd")}
    links = {"ccc": after("bbb"), "bbb": after("aaa"), "aaa": after("ccc"), "ddd": after("aaa")}
    cycle = AfterCycle(("aaa", "ccc", "bbb"))
    assert holds(found, **links) == {"aaa": cycle, "bbb": cycle, "ccc": cycle, "ddd": AfterRuns(("aaa",))}
    assert str(cycle) == "runs wait for each other: aaa -> ccc -> bbb -> aaa"


def test_long_chains_and_cycles_are_decided() -> None:
    count = 20_000
    found = {f"r{number}": Found(RunStatus.STAGED, (f"r{number}",)) for number in range(count)}
    chain = {f"r{number}": after(f"r{number + 1}") for number in range(count - 1)}
    assert not any(isinstance(hold, AfterCycle) for hold in holds(found, **chain).values())
    closed = {**chain, f"r{count - 1}": after("r0")}
    assert all(isinstance(hold, AfterCycle) for hold in holds(found, **closed).values())


# Properties: up to eight runs, each after any of the others and itself.

NAMES = tuple("abcdefgh")
GRAPHS = st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3), max_size=8)


def ends_reached(graph: Mapping[str, list[str]]) -> set[str]:
    """Returns the runs that complete when each starts as soon as it is not held."""
    done: set[str] = set()
    while True:
        found = {name: Found(RunStatus.COMPLETED if name in done else RunStatus.STAGED, (name,)) for name in NAMES}
        links = {name: after(*awaits) for name, awaits in graph.items() if name not in done}
        free = {name for name in NAMES if name not in done} - decide(links, found).holds.keys()
        if not free:
            return done
        done |= free


@checked
@given(GRAPHS)
def test_every_run_starts_unless_it_waits_for_a_cycle_and_the_cycle_is_named(graph: dict[str, list[str]]) -> None:
    done = ends_reached(graph)
    found = {name: Found(RunStatus.COMPLETED if name in done else RunStatus.STAGED, (name,)) for name in NAMES}
    left = decide({name: after(*awaits) for name, awaits in graph.items() if name not in done}, found).holds
    assert left.keys() == set(NAMES) - done
    cycles = {hold.runs for hold in left.values() if isinstance(hold, AfterCycle)}
    for runs in cycles:
        assert all(later in graph[run] for run, later in zip(runs, (*runs[1:], runs[0]), strict=True))
        assert all(left[run] == AfterCycle(runs) for run in runs)
    for run_id in left:
        seen, ahead = set(), [run_id]
        while ahead:
            name = ahead.pop()
            if name not in seen:
                seen.add(name)
                ahead += graph.get(name, [])
        assert any(set(runs) <= seen for runs in cycles)


@checked
@given(GRAPHS)
def test_no_run_starts_before_those_that_it_comes_after(graph: dict[str, list[str]]) -> None:
    done = ends_reached(graph)
    assert all(set(awaits) <= done for name, awaits in graph.items() if name in done)


# The status of a run


@pytest.fixture
def runs_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "runs"


VANISHED = {"batch1", "patch1", "patch2"}


def found_in(runs_dir: pathlib.Path, reference: str) -> Found:
    return lookup.found(str(runs_dir), runs_dir.parent / "claims", VANISHED, [reference])[reference]


def test_run_whose_end_cannot_be_read_holds_back_only_those_that_come_after_it(
    runs_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = make_run(runs_dir / "bad", exit_status="0\n")
    run_directory.clear_markers(str(bad), "STAGED")
    make_run(runs_dir / "staged")
    with unreadable_file(monkeypatch, str(bad / ".guild" / "attrs" / "exit_status")):
        found = lookup.found(str(runs_dir), runs_dir.parent / "claims", (), ["bad", "staged"])
    assert {name: each.status for name, each in found.items()} == {
        "bad": RunStatus.GOES_ON,
        "staged": RunStatus.STAGED,
    }


def test_statuses_agree_with_guild(runs_dir: pathlib.Path) -> None:
    for name, exit_status in {"completed": "0\n", "failed": "3\n", "terminated": "-15\n", "unreadable": "[\n"}.items():
        run_directory.clear_markers(str(make_run(runs_dir / name, exit_status=exit_status)), "STAGED")
    make_run(runs_dir / "staged")
    run_directory.set_marker(str(make_run(runs_dir / "pending")), "PENDING")
    for name, pid in {"runs": os.getpid(), "died": 2**22 + 1}.items():
        run_dir = make_run(runs_dir / name)
        run_directory.clear_markers(str(run_dir), "STAGED")
        (run_dir / ".guild" / "LOCK").write_text(str(pid))
    assert not psutil.pid_exists(2**22 + 1)
    assert {path.name: found_in(runs_dir, path.name).status for path in runs_dir.iterdir()} == {
        "completed": RunStatus.COMPLETED,
        "failed": RunStatus.FAILED,
        "terminated": RunStatus.TERMINATED,
        "unreadable": RunStatus.FAILED,
        "staged": RunStatus.STAGED,
        "pending": RunStatus.GOES_ON,
        "runs": RunStatus.GOES_ON,
        "died": RunStatus.FAILED,
    }


def test_claimed_run_counts_as_running(runs_dir: pathlib.Path) -> None:
    # Between two of Guild's steps, a run that starts has neither a marker nor a process nor an exit code.
    run_directory.clear_markers(str(make_run(runs_dir / "aaa")), "STAGED")
    assert found_in(runs_dir, "aaa").status is RunStatus.FAILED
    me = processes.identity(os.getpid())
    assert me
    claims.write(runs_dir.parent / "claims", claims.Claim("aaa", "sched", me, me))
    assert found_in(runs_dir, "aaa").status is RunStatus.GOES_ON


def test_complete_id_is_that_run_even_if_other_ids_begin_with_it(runs_dir: pathlib.Path) -> None:
    for name in ("ab", "abc", "abd", "xyz"):
        make_run(runs_dir / name)
    assert found_in(runs_dir, "ab") == Found(RunStatus.STAGED, ("ab",))
    assert found_in(runs_dir, "x") == Found(RunStatus.STAGED, ("xyz",))
    assert found_in(runs_dir, "a") == Found(RunStatus.AMBIGUOUS, ("ab", "abc", "abd"))
    assert found_in(runs_dir, "nobody") == Found(RunStatus.UNKNOWN)
    assert found_in(runs_dir, "../runs/ab") == Found(RunStatus.UNKNOWN)
    assert found_in(runs_dir, "bat") == Found(RunStatus.COMPLETED, ("batch1",))
    assert found_in(runs_dir, "patch") == Found(RunStatus.UNKNOWN)
    assert found_in(runs_dir / "nowhere", "a") == Found(RunStatus.UNKNOWN)


def test_thousands_of_references_take_little_time_whatever_runs_there_are(runs_dir: pathlib.Path) -> None:
    # The scheduler looks up those that are not there at each listing, and does nothing else meanwhile.
    for number in range(500):
        (runs_dir / f"{number:032x}" / "attrs").mkdir(parents=True)
    missing = [f"f{number:031x}" for number in range(10_000)]
    vanished = {f"e{number:031x}" for number in range(3_000)}
    with mock.patch.object(run_directory, "is_run", wraps=run_directory.is_run) as checks:
        found = lookup.found(str(runs_dir), runs_dir.parent / "claims", vanished, missing)
        assert set(found.values()) == {Found(RunStatus.UNKNOWN)}
        assert checks.call_count <= 1
        lookup.found(str(runs_dir), runs_dir.parent / "claims", (), ["0" * length for length in range(30)])
        assert checks.call_count <= 600, "each folder is seen once"


@checked
@given(names=st.sets(st.text("ab", min_size=1, max_size=4)), reference=st.text("ab", max_size=4))
def test_reference_means_the_run_with_that_id_or_those_that_begin_with_it(names: set[str], reference: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            make_run(pathlib.Path(folder, name))
        found = lookup.found(folder, pathlib.Path(folder, "claims"), (), [reference, "nobody"])[reference]
    matching = sorted(name for name in names if name.startswith(reference))
    meant = [reference] if reference in names else matching[:3]
    assert found.run_ids == tuple(meant)


@checked
@given(st.text())
def test_no_reference_raises(reference: str) -> None:
    assert lookup.found("/nowhere", pathlib.Path("/nowhere"), (), [reference])[reference] == Found(RunStatus.UNKNOWN)


# Cached statuses


def test_only_unknown_references_are_looked_up() -> None:
    # Otherwise, with thousands of dependent runs, each end of a run would read thousands of files.
    asked: list[set[str]] = []
    status = {"aa": RunStatus.STAGED, "bb": RunStatus.GOES_ON, "cc": RunStatus.COMPLETED, "dd": RunStatus.FAILED}

    def find(references: Iterable[str]) -> dict[str, Found]:
        asked.append(set(references))
        full = {reference: f"{reference[0]}{reference[0]}" for reference in asked[-1]}
        return {reference: Found(status[run_id], (run_id,)) for reference, run_id in full.items()}

    lookup = DependencyLookup()
    active: set[str] = set()

    def found(references: set[str], staged: Container[str]) -> dict[str, Found]:
        known = lookup.known(references, active, staged)
        unknown = references - known.keys()
        known |= find(unknown) if unknown else {}
        lookup.remember(known)
        return known

    references = {"a", "bb", "c", "dd"}
    first = found(references, {"bb"})
    assert asked == [{"a", "c", "dd"}]
    assert first["bb"] == Found(RunStatus.STAGED, ("bb",))
    # A short reference is known from now on, and a run that completed has completed.
    assert found(references, {"aa", "bb"}) == first
    assert asked[1:] == [{"dd"}]
    active.add("aa")
    assert found({"a", "c"}, ())["a"] == Found(RunStatus.GOES_ON, ("aa",))
    assert asked[2:] == []
    assert lookup.means("aa")
    assert not lookup.means("dd")
    # It ended.
    active.clear()
    status["aa"] = RunStatus.COMPLETED
    assert found({"a"}, ())["a"].status is RunStatus.COMPLETED


# With real runs


def test_run_waits_for_one_that_was_started_by_hand(user: Sandbox, guild: Guild) -> None:
    go = user.folder / "go"
    a_project(user, f"hold:\n  exec: sh -c 'until [ -e {go} ]; do sleep 0.1; done'\nop:\n  exec: 'true'\n")
    stage(guild, "op", "bbb", options="--tag dask-after:aaa")
    with guild.started("run hold --run-id aaa -y"):
        wait_until(lambda: statuses(user).get("aaa") == "running")
        with guild.started(f"run dask:scheduler run-once=yes poll-interval=0.2 {NO_DASHBOARD} -y") as scheduler:
            scheduler.wait_for_output("Found staged run bbb (waiting for runs to finish: aaa)")
            before = scheduler.output
            # The scheduler neither starts the run nor gives up.
            deadline = time.monotonic() + 2
            wait_until(lambda: time.monotonic() > deadline)
            assert scheduler.output == before
            assert scheduler.is_running
            go.touch()
            assert scheduler.wait().exit_code == 0
    assert statuses(user) == {"aaa": "completed", "bbb": "completed"}


def test_runs_that_an_operation_requires_are_read(user: Sandbox, guild: Guild) -> None:
    a_project(
        user,
        """
prepare:
  exec: 'true'
fetch:
  exec: 'true'
train:
  exec: 'true'
  requires:
    - operation: prepare
    - operation: fetch
      name: fetched
    - file: guild.yml
plain:
  exec: 'true'
  requires:
    - file: guild.yml
""",
    )
    stage(guild, "prepare", "aaa", "bbb")
    stage(guild, "fetch", "ccc")
    guild("run train operation:prepare=aaa --run-id ddd --stage -y")
    stage(guild, "train", "eee")
    stage(guild, "plain", "fff")
    needs = {
        name: run_directory.read_staged(str(user.guild_home / "runs" / name)).needs for name in ("ddd", "eee", "fff")
    }
    assert needs == {"ddd": ("aaa", "ccc"), "eee": ("bbb", "ccc"), "fff": ()}
