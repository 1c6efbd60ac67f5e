"""A whole search, as a user starts it: what it learns from, what observers see of it, its end, and bad days."""

import contextlib
import errno
import fcntl
import json
import math
import os
import pathlib
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from guild_dask.home import claims, layout, run_directory, run_view, status, stop_request, trials
from guild_dask.home.search_journal import Proposal, SearchJournal
from guild_dask.host.processes import ProcessIdentity
from guild_dask.monitor import searches
from guild_dask.plan.objectives import Objective
from guild_dask.plan.retries import Policy
from guild_dask.plan.search_ends import TrialsUsed, data_for_end
from guild_dask.scheduler.search.__main__ import Alone, CannotSearch
from guild_dask.scheduler.search.engine import Engine, Knowledge
from guild_dask.scheduler.search.search import Problem, Search
from guild_dask.scheduler.search.settings import SearchSettings
from guild_dask.scheduler.search.space import key_of, space_for_flags
from guild_dask.scheduler.search.staging import Stager, mark_pruned
from tests.home.test_run_directory import make_run
from tests.support.exhaustion import disk, fill
from tests.support.failing_files import Files
from tests.support.sandbox import Guild, Sandbox, Started, run_command, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, statuses
from tests.support.searches import BATCH, SPACE, GivenTrial, a_search, some_trials, trial_id

# Waits for a file, so that a test decides when trials end.
SCRIPT = """
import os, sys, time
x = 1
while not os.path.exists(os.environ["GUILD_HOME"] + "/enough"):
    time.sleep(0.05)
if os.path.exists(os.environ["GUILD_HOME"] + "/fail"):
    sys.exit(3)
print("loss: %d" % x)
"""
TRAIN = """
train:
  main: train
  flags-import: all
"""
SEARCH = f"run train x=[1:9] --optimizer dask:random --run-id batch -Fo {NO_DASHBOARD} -y"


@pytest.fixture
def home(user: Sandbox) -> pathlib.Path:
    """A Guild home, and a project with an operation whose runs wait for the file `enough` in it."""
    a_project(user, TRAIN, {"train.py": SCRIPT})
    return user.guild_home


def _trials(home: pathlib.Path) -> list[trials.Trial]:
    return trials.TrialReader(str(home), "batch", (Objective("loss"),)).read()


def _states(home: pathlib.Path) -> list[str]:
    return [trial.state.value for trial in _trials(home)]


# What it learns from


class _Asked(Engine):
    """An engine that keeps what it is asked with, and has no point to propose."""

    asked: Knowledge

    def propose(self, knowledge: Knowledge, _count: int) -> list[dict[str, Any]]:
        self.asked = knowledge
        return []


@pytest.mark.parametrize(("prior", "observed"), [("none", 0), ("batch", 12)])
def test_search_that_goes_on_with_prior_none_forgets_results_but_not_points(
    tmp_path: pathlib.Path, prior: str, observed: int
) -> None:
    a_search(tmp_path, some_trials(12), SPACE)
    space = space_for_flags(dict(SPACE))
    engine = _Asked("tpe", space, ["minimize"], 1)
    journal = SearchJournal(layout.run_dir(str(tmp_path), BATCH))
    problem = Problem(str(tmp_path), BATCH, space, (Objective("loss"),), 50)
    Search(problem, SearchSettings(prior=prior), engine, journal, Policy()).step(1)
    assert len(engine.asked.observations) == observed
    assert engine.asked.avoided == {key_of(trial.point) for trial in some_trials(12)}


def test_search_that_goes_on_with_several_objectives_learns_from_no_trial_that_was_ended_early(
    tmp_path: pathlib.Path,
) -> None:
    given = [each._replace(scalars={"size": 1.0 + number}) for number, each in enumerate(some_trials(16))]
    a_search(tmp_path, given, SPACE)
    space = space_for_flags(dict(SPACE))
    engine = _Asked("tpe", space, ["minimize", "minimize"], 1)
    journal = SearchJournal(layout.run_dir(str(tmp_path), BATCH))
    problem = Problem(str(tmp_path), BATCH, space, (Objective("loss"), Objective("size")), 50)
    Search(problem, SearchSettings(), engine, journal, Policy()).step(1)
    assert len(engine.asked.observations) == 12
    assert engine.asked.avoided == {key_of(trial.point) for trial in given}
    assert len(Engine.propose(engine, engine.asked, 1)) == 1


def test_trial_whose_staging_is_not_on_record_is_not_made_again_if_the_user_deletes_it(tmp_path: pathlib.Path) -> None:
    # The search was killed right after it had staged the trial.
    a_search(tmp_path, some_trials(1), SPACE)
    run_dir = layout.run_dir(str(tmp_path), BATCH)
    file = pathlib.Path(layout.search_journal(run_dir))
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if '"staged"' not in line))
    space = space_for_flags(dict(SPACE))
    problem = Problem(str(tmp_path), BATCH, space, (Objective("loss"),), 50)
    engine = _Asked("tpe", space, ["minimize"], 1)
    Search(problem, SearchSettings(), engine, SearchJournal(run_dir), Policy()).step(1)
    shutil.rmtree(layout.run_dir(str(tmp_path), trial_id(1)))
    (found,) = trials.TrialReader(str(tmp_path), BATCH, problem.objectives).read()
    assert found.state is trials.TrialState.DELETED


# What observers see


def test_status_shows_a_search_whose_cluster_is_not_open_yet(home: pathlib.Path, guild: Guild) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with guild.started(f"{SEARCH} -Fo cluster={address}") as search:
            search.wait_for_output("Initializing cluster")
            (shown,) = json.loads(_status(home))["searches"]
            assert (shown["batch"], shown["is_at_work"]) == ("batch", True), search.so_far()
            assert set(shown["counts"].values()) == {0}


def _status(home: pathlib.Path) -> str:
    return run_command(["guild-dask", "status", "--json"], os.environ, home).output


def test_unknown_flag_in_a_guild_file_is_reported(home: pathlib.Path, user: Sandbox, guild: Guild) -> None:
    quick = "  optimizers:\n    quick: {algorithm: dask:random, parallel: 1, max-trials: 2}\n"
    a_project(user, TRAIN + quick, {"train.py": SCRIPT})
    (home / "enough").touch()
    done = guild(f"run train x=[1:9] --optimizer quick --max-trials 1 -Fo {NO_DASHBOARD} -y")
    assert "Ignoring what dask:random has no flag for: max-trials" in done.output


def test_views_show_the_trials_of_a_search_that_has_ended_although_they_cannot_be_read_then(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_search(tmp_path, some_trials(), SPACE, is_over=False)
    space = space_for_flags(dict(SPACE))
    problem = Problem(str(tmp_path), BATCH, space, (Objective("loss"),), 12)
    journal = SearchJournal(layout.run_dir(str(tmp_path), BATCH))
    search = Search(problem, SearchSettings(), _Asked("tpe", space, ["minimize"], 1), journal, Policy())
    assert search.step(1).is_over

    def refuse(*_: object) -> list[trials.Trial]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(trials.TrialReader, "read", refuse)
    journal.add("ended", why=data_for_end(TrialsUsed(12)))
    assert len(search.publish_end()) == 12
    shown = searches.read(str(tmp_path), BATCH)
    assert shown
    assert (shown.counts["completed"], shown.ended) == (9, TrialsUsed(12))


def test_search_whose_trials_could_never_be_read_publishes_none(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_search(tmp_path, some_trials(), SPACE)
    space = space_for_flags(dict(SPACE))
    problem = Problem(str(tmp_path), BATCH, space, (Objective("loss"),), 12)
    journal = SearchJournal(layout.run_dir(str(tmp_path), BATCH))
    search = Search(problem, SearchSettings(), _Asked("tpe", space, ["minimize"], 1), journal, Policy())

    def refuse(*_: object) -> list[trials.Trial]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(trials.TrialReader, "read", refuse)
    assert search.publish_end() == []
    shown = searches.read(str(tmp_path), BATCH)
    assert shown
    assert shown.counts["completed"] == 9


def test_earlier_run_that_no_trial_beats_is_named_and_reaches_the_target(home: pathlib.Path, guild: Guild) -> None:
    (home / "enough").touch()
    for x in (1, 2):
        guild(f"run train x={x} --run-id earlier{x} -y")
    search = f"{SEARCH} -Fo workers=1 -Fo prior=operation --max-trials 1"
    done = guild(search).output
    assert done.count("earlier run earlier") == 1
    for line in ("Best earlier run: earlier1, loss 1 (x=1)", "No trial beats earlier run earlier1, loss 1 (x=1)"):
        assert f"{line}\n" in done
    over = guild(f"{search.replace('--run-id batch', '')} -Fo target=1").output
    assert "The search is over: the earlier run earlier1 has reached the target, loss 1\n" in over
    assert "Staging" not in over


# Its trials


def test_tags_of_a_search_are_those_of_its_trials_and_limit_how_many_are_in_flight(
    home: pathlib.Path, guild: Guild
) -> None:
    search = f"{SEARCH} --max-trials 4 --tag dask:gpu=1 -Fo workers=3 -Fo resources=gpu=2"
    with guild.started(search) as searching:
        wait_until(lambda: _states(home).count("running") == 2, describe=searching.so_far)
        (home / "enough").touch()
        ended = searching.wait()
    assert "(requires gpu=1)" in ended.output
    assert "waits for" not in ended.output, "a third trial would have been staged in vain"
    assert _states(home) == ["completed"] * 4, ended
    tags = [list(run_view.tags(layout.run_dir(str(home), trial.id))) for trial in _trials(home)]
    assert tags == [["dask:gpu=1"]] * 4


PIPE = """
  optimizers:
    own: {algorithm: dask:random, dashboard-address: 'no', workers: 1}
pipe:
  steps:
    - run: train
      flags: {x: [1, 2]}
      optimizer: own
      max-trials: 2
"""


def test_search_that_is_a_step_does_not_wait_for_the_slot_of_its_pipeline(
    home: pathlib.Path, user: Sandbox, guild: Guild
) -> None:
    a_project(user, TRAIN + PIPE, {"train.py": SCRIPT})
    (home / "enough").touch()
    guild("run pipe --run-id pipe --stage -y")
    with guild.started(f"run dask:scheduler workers=1 {NO_DASHBOARD} -y") as scheduler:
        wait_until(lambda: statuses(user)["pipe"] == "completed", describe=scheduler.so_far)
    (search,) = trials.batches(str(home))
    assert "Initializing cluster" in pathlib.Path(layout.output(layout.run_dir(str(home), search))).read_text()


def test_trials_without_steps_are_reported_once_if_they_are_to_be_ended_early(home: pathlib.Path, guild: Guild) -> None:
    (home / "enough").touch()
    output = guild(f"{SEARCH} --max-trials 3 -Fo workers=1 -Fo stop-early=asha").output
    assert output.count("Trials cannot be ended early") == 1
    assert 'as in print(f"step: {step}")' in output


@pytest.mark.parametrize(("flag", "why"), [("max-time=0.1s", "its time is over"), ("target=9", "a trial has reached")])
def test_search_is_over_when_its_time_is_or_a_trial_is_good_enough(
    home: pathlib.Path, guild: Guild, flag: str, why: str
) -> None:
    (home / "enough").touch()
    ended = guild(f"{SEARCH} --max-trials 9 -Fo workers=1 -Fo {flag}")
    assert f"The search is over: {why}" in ended.output
    assert _states(home) == ["completed"], ended


# Trials with a small x complete at once. The others wait for the file, and then take a quarter of a minute.
STEPS = """
import os, time
x = 1
while x > 5 and not os.path.exists(os.environ["GUILD_HOME"] + "/enough"):
    time.sleep(0.05)
for step in range(1, 301):
    print("step: %d" % step, flush=True)
    print("loss: %f" % (x + 1 / step), flush=True)
    time.sleep(0.05 if x > 5 else 0)
"""


def test_median_rule_ends_trials_that_are_worse_than_half_of_the_completed_ones(
    home: pathlib.Path, user: Sandbox, guild: Guild
) -> None:
    a_project(user, TRAIN, {"train.py": STEPS})
    with guild.started(SEARCH.replace("[1:9]", "[1:7]") + " -Fo workers=7 -Fo stop-early=median") as search:
        wait_until(lambda: _states(home).count("completed") == 5, describe=search.so_far)
        (home / "enough").touch()
        ended = search.wait()
    by_x = {trial.point["x"]: trial.state.value for trial in _trials(home)}
    assert by_x == {**dict.fromkeys(range(1, 6), "completed"), 6: "pruned", 7: "pruned"}, ended


# One trial diverges as soon as the other one has printed a value.
DIVERGES = """
import os, time
x = 1
def wait_for(name):
    while not os.path.exists(os.environ["GUILD_HOME"] + "/" + name):
        time.sleep(0.05)
if x == 1:
    wait_for("enough")
    print("loss: nan")
else:
    print("loss: 0.5", flush=True)
    wait_for("more")
"""


def test_trial_that_diverges_does_not_end_a_search_whose_other_trials_have_values(
    home: pathlib.Path, user: Sandbox, guild: Guild
) -> None:
    a_project(user, TRAIN, {"train.py": DIVERGES})
    with guild.started(SEARCH.replace("[1:9]", "[1,2]") + " -Fo workers=2") as search:
        wait_until(lambda: any(trial.values for trial in _trials(home)), describe=search.so_far)
        (home / "enough").touch()
        wait_until(lambda: "completed" in _states(home), describe=search.so_far)
        (home / "more").touch()
        ended = search.wait()
    assert ended.exit_code == 0, ended
    assert {trial.point["x"]: trial.values for trial in _trials(home)} == {1: None, 2: (0.5,)}, ended


def test_staged_trial_whose_flag_is_not_a_number_is_not_damaged(tmp_path: pathlib.Path) -> None:
    # Else each start of the search would make its run anew.
    a_search(tmp_path, [GivenTrial({"lr": 0.1}, end="staged")], SPACE)
    run_dir = layout.run_dir(str(tmp_path), trial_id(1))
    pathlib.Path(layout.attribute(run_dir, "flags")).write_text("{lr: 0.1, clip: .nan}")
    stager = Stager(str(tmp_path), BATCH, SearchJournal(layout.run_dir(str(tmp_path), BATCH)))
    assert not stager.is_damaged(_proposal({"lr": 0.1, "clip": math.nan}))
    assert stager.is_damaged(_proposal({"lr": 0.2, "clip": math.nan}))


@pytest.mark.parametrize("flags", ["{1: 0.1, lr: 0.1}", "{lr: 0.1}", "[1]", "{lr: 0.1, clip: [1], 2: {}}"])
def test_staged_trial_with_other_flags_is_damaged_whatever_they_are(tmp_path: pathlib.Path, flags: str) -> None:
    a_search(tmp_path, [GivenTrial({"lr": 0.1}, end="staged")], SPACE)
    pathlib.Path(layout.attribute(layout.run_dir(str(tmp_path), trial_id(1)), "flags")).write_text(flags)
    stager = Stager(str(tmp_path), BATCH, SearchJournal(layout.run_dir(str(tmp_path), BATCH)))
    assert stager.is_damaged(_proposal({"lr": 0.1, "clip": 1}))


@pytest.mark.parametrize(
    ("flags", "is_damaged"),
    [("{lr: 0.1, layers: 2}", False), ("{lr: 0.1}", False), ("{lr: 0.2}", True), ("{layers: 2}", True), ("", True)],
)
def test_staged_trial_whose_flags_are_not_on_record_is_compared_by_its_point(
    tmp_path: pathlib.Path, flags: str, is_damaged: bool
) -> None:
    # Another version proposed it, and a restart may have changed the other flags of the search since.
    a_search(tmp_path, [GivenTrial({"lr": 0.1}, end="staged")], SPACE)
    pathlib.Path(layout.attribute(layout.run_dir(str(tmp_path), trial_id(1)), "flags")).write_text(flags)
    journal = SearchJournal(layout.run_dir(str(tmp_path), BATCH))
    assert journal.log.proposals[trial_id(1)].flags is None
    assert Stager(str(tmp_path), BATCH, journal).is_damaged(journal.log.proposals[trial_id(1)]) == is_damaged


def _proposal(flags: Mapping[str, Any]) -> Proposal:
    return Proposal(trial_id(1), 1, {"lr": flags["lr"]}, 1.0, flags)


def test_restart_with_other_flags_leaves_staged_trials_as_they_are(home: pathlib.Path, guild: Guild) -> None:
    with guild.started(f"run dask:scheduler workers=2 {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("Waiting for staged runs")
        run_command("guild-dask pause", os.environ, home)
        scheduler.wait_for_output("Paused: ")
        with guild.started(f"{SEARCH} y=2 --force-flags -Fo parallel=2") as search:
            wait_until(lambda: _states(home) == ["waiting"] * 2, describe=search.so_far)
            guild("stop batch -y")
            search.wait()
    run_command("guild-dask resume", os.environ, home)
    before = {trial.id: _flags(home, trial.id) for trial in _trials(home)}
    assert [flags["y"] for flags in before.values()] == [2, 2]
    half, _ = before
    (home / "runs" / half / ".guild" / "attrs" / "flags").write_text("")  # as after a power failure
    (home / "enough").touch()
    ended = guild("run --restart batch x=3 y=[1,2] z=5 --force-flags --max-trials 3 -Fo workers=1 -y")
    assert ended.output.count("which was left half staged") == 1, ended
    assert {run: _flags(home, run) for run in before} == before
    assert _states(home) == ["completed"] * 3


def _flags(home: pathlib.Path, run: str) -> Mapping[str, Any]:
    return run_view.flags(str(home / "runs" / run))


def test_trial_that_cannot_be_staged_again_is_reported_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_search(tmp_path, some_trials(1), SPACE, is_over=False)
    attributes = pathlib.Path(layout.attributes(layout.run_dir(str(tmp_path), trial_id(1))))
    (attributes / "exit_status").write_text("-15")
    (attributes / "dask").write_text(json.dumps({"ended": "scheduler-stopped"}))
    (attributes / "started").unlink()
    (attributes / "started").mkdir()
    space = space_for_flags(dict(SPACE))
    problem = Problem(str(tmp_path), BATCH, space, (Objective("loss"),), 1)
    journal = SearchJournal(layout.run_dir(str(tmp_path), BATCH))
    search = Search(problem, SearchSettings(), _Asked("tpe", space, ["minimize"], 1), journal, Policy())
    with caplog.at_level("INFO", "guild"):
        assert [search.step(1).is_over, search.step(1).is_over] == [False, False]
    assert caplog.text.count(f"Cannot stage trial {trial_id(1)} again: cannot write to its directory") == 1


def test_trial_is_reported_as_staged_only_when_it_is(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    # While the disk is full, each step tries it again.
    a_search(tmp_path, [], SPACE, is_over=False)
    journal = SearchJournal(layout.run_dir(str(tmp_path), BATCH))
    journal.add("proposed", trial=trial_id(1), number=1, point=some_trials(1)[0].point)
    pathlib.Path(layout.run_dir(str(tmp_path), trial_id(1))).touch()
    space = space_for_flags(dict(SPACE))
    problem = Problem(str(tmp_path), BATCH, space, (Objective("loss"),), 1)
    search = Search(problem, SearchSettings(), _Asked("tpe", space, ["minimize"], 1), journal, Policy())
    with caplog.at_level("INFO", "guild"), pytest.raises(OSError, match="Not a directory"):
        search.step(1)
    assert trial_id(1) not in caplog.text


def _a_search_with_a_bad_trial_that_runs(home: pathlib.Path) -> Search:
    """Returns a search of three trials, of which the last one runs, is worse than the others, and is to end early."""
    good = [GivenTrial({"lr": lr}, [0.3, 0.2, 0.1, 0.1]) for lr in (0.01, 0.02)]
    a_search(home, [*good, GivenTrial({"lr": 0.03}, [9.0, 9.0, 9.0], "staged")], {"lr": "[0.0:1.0]"}, is_over=False)
    records = pathlib.Path(layout.guild_dir(layout.run_dir(str(home), trial_id(3))))
    (records / layout.STAGED).unlink()
    (records / layout.REMOTE_LOCK).write_text("node")
    _start(home, serial=1)
    space = space_for_flags({"lr": "[0.0:1.0]"})
    problem = Problem(str(home), BATCH, space, (Objective("loss"),), 3)
    journal = SearchJournal(layout.run_dir(str(home), BATCH))
    settings = SearchSettings(stop_early="asha")
    return Search(problem, settings, _Asked("tpe", space, ["minimize"], 1), journal, Policy())


def _start(home: pathlib.Path, serial: int, before: str | None = None) -> None:
    """Makes the claim of an attempt at the trial that runs, in the place of the one before.

    `before` is what Guild had recorded of the trial when it was claimed.
    """
    folder = layout.claims_folder(str(home))
    claims.remove(folder, trial_id(3))
    ended = ProcessIdentity(1, 1.0, "boot", "elsewhere")
    claims.mark_started(
        claims.write(folder, claims.Claim(trial_id(3), "sss", ended, ended, serial=serial, before=before))
    )


def _is_asked_to_end(home: pathlib.Path) -> bool:
    return stop_request.is_requested(claims.path(layout.claims_folder(str(home)), trial_id(3)))


def test_trial_is_asked_to_end_early_once_it_can_be_if_the_disk_was_full(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = _a_search_with_a_bad_trial_that_runs(tmp_path)

    def refuse(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            search.step(1)
    assert not _is_asked_to_end(tmp_path)
    search.step(1)
    assert _is_asked_to_end(tmp_path)


def test_trial_is_asked_to_end_early_once_for_each_attempt(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    search = _a_search_with_a_bad_trial_that_runs(tmp_path)
    with caplog.at_level("INFO", "guild"):
        for serial in (1, 2):
            if serial == 2:
                _start(tmp_path, serial)  # the worker of the first attempt was lost, and the stop request with it
            search.step(1)
            search.step(1)
            assert _is_asked_to_end(tmp_path)
            assert caplog.text.count("Ending trial") == serial


@pytest.mark.parametrize(
    ("before", "code", "is_asked"),
    [
        (None, "", True),
        (None, "1", False),
        ("/", "1", False),
        ("/1 5", "", True),  # an earlier end is removed when the new process has begun
        ("/1 5", "1", False),
    ],
)
def test_trial_that_has_just_failed_by_itself_is_not_asked_to_end_early(
    tmp_path: pathlib.Path, before: str | None, code: str, is_asked: bool
) -> None:
    # Its scheduler has not settled it yet. It would count as pruned, and would not be tried again.
    search = _a_search_with_a_bad_trial_that_runs(tmp_path)
    _start(tmp_path, 2, before)
    records = pathlib.Path(layout.guild_dir(layout.run_dir(str(tmp_path), trial_id(3))))
    (records / layout.LOCK).write_text("1")
    if code:
        (records / layout.REMOTE_LOCK).unlink()
        (records / "attrs" / "exit_status").write_text(code)
        (records / "attrs" / "stopped").write_text("9")
    search.step(1)
    assert _is_asked_to_end(tmp_path) == is_asked


# How it ends


def test_search_that_is_stopped_leaves_its_trials_to_the_scheduler_that_runs_them(
    home: pathlib.Path, guild: Guild
) -> None:
    with guild.started(f"run dask:scheduler workers=1 {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("Waiting for staged runs")
        with guild.started(f"{SEARCH} -Fo parallel=2") as search:
            search.wait_for_output("Proposing trials for scheduler")
            wait_until(lambda: sorted(_states(home)) == ["running", "waiting"], describe=search.so_far)
            guild("stop batch -y")
            assert "guild run --restart batch goes on" in search.wait().output
        assert sorted(_states(home)) == ["running", "waiting"]
        (home / "enough").touch()
        wait_until(lambda: _states(home) == ["completed"] * 2, describe=scheduler.so_far)


def test_exit_code_of_a_search_is_1_if_it_gives_up_and_0_if_it_is_over_or_stopped(
    home: pathlib.Path, guild: Guild
) -> None:
    for name in ("enough", "fail"):
        (home / name).touch()
    failed = guild(f"{SEARCH} -Fo workers=2 -Fo max-failures=2", exit_code=1)
    assert "the search stops: the last 2 trial(s) failed" in failed.output
    (home / "fail").unlink()
    # Failed trials alone do not make it fail: the next ones may be better.
    assert "it has had 4 trial(s)" in guild("run --restart batch --max-trials 4 -y").output
    assert "completed" in _states(home)
    (home / "enough").unlink()
    with guild.started("run --restart batch --max-trials 6 -y") as search:
        wait_until(lambda: _states(home).count("running") == 2, describe=search.so_far)
        guild("stop batch -y")
        assert search.wait().exit_code == 0, search.so_far()


TWO = """
x = 1
print("loss: %d" % x)
print("accuracy: %d" % (2 * x))
"""


def test_objectives_stay_the_same_until_others_are_named(home: pathlib.Path, user: Sandbox, guild: Guild) -> None:
    # Each restart without them makes Guild forget the option, and --force-sourcecode the objective.
    a_project(user, TRAIN, {"train.py": TWO})
    guild(f"{SEARCH} --minimize '-accuracy loss' --max-trials 1 -Fo workers=1 --stage")
    same = "Searching with dask:random: maximize accuracy, minimize loss,"
    assert same in guild("run --start batch -y").output
    for number, options in enumerate(("", "--force-sourcecode", ""), 2):
        assert same in guild(f"run --restart batch --max-trials {number} {options} -y").output
    restarted = guild("run --restart batch --max-trials 5 --maximize 'accuracy loss' -y").output
    assert "Searching with dask:random: maximize accuracy, maximize loss," in restarted
    found = trials.search(str(home), "batch")
    assert found.objectives == (Objective("accuracy", is_maximized=True), Objective("loss", is_maximized=True))


@pytest.mark.parametrize(("space", "why"), [("x=[1:9]", "it has had 2 trial(s)"), ("x=[1,2]", "every point")])
def test_search_that_is_over_opens_no_cluster_to_say_so(home: pathlib.Path, guild: Guild, space: str, why: str) -> None:
    (home / "enough").touch()
    guild(f"{SEARCH.replace('x=[1:9]', space)} --max-trials 2")
    more = 2 if space == "x=[1:9]" else 5
    again = guild(f"run --restart batch --max-trials {more} -Fo cluster=tcp://127.0.0.1:1 -y", exit_code=0)
    assert f"The search is over: {why}" in again.output
    assert "Best: trial" in again.output
    assert "luster" not in again.output


def test_trial_that_is_ended_early_is_marked_although_the_search_may_not_go_on(tmp_path: pathlib.Path) -> None:
    # The search was stopped after it had asked the trial to end.
    a_search(tmp_path, some_trials(4), SPACE, is_over=False)
    space = space_for_flags(dict(SPACE))
    problem = Problem(str(tmp_path), BATCH, space, (Objective("loss"),), 50)
    journal = SearchJournal(layout.run_dir(str(tmp_path), BATCH))
    search = Search(problem, SearchSettings(), _Asked("tpe", space, ["minimize"], 1), journal, Policy())
    search.step(1, may_go_on=lambda: False)
    tags = [list(run_view.tags(layout.run_dir(str(tmp_path), trial_id(number)))) for number in (3, 4)]
    assert tags == [[], ["pruned"]]


def test_trial_that_is_ended_early_keeps_its_tags_and_label_whatever_file_cannot_be_read(
    tmp_path: pathlib.Path, failing: Files
) -> None:
    run_dir = str(make_run(tmp_path / "aaa", tags="['dask:gpu=1']\n", label="x=1\n"))
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        run_directory.write_tags(run_dir, ["dask:gpu=1"])
        run_directory.write_label(run_dir, "x=1")
        with failing.failing(chosen), contextlib.suppress(OSError):
            mark_pruned(run_dir)
        mark_pruned(run_dir)
        found = [run_directory.attribute(run_dir, name) for name in ("tags", "label")]
        assert found == [["dask:gpu=1", "pruned"], "pruned x=1"], f"after file {chosen} could not be read"
    assert chosen > 2


@pytest.mark.parametrize("name", ["tags", "label"])
def test_damaged_tags_and_label_of_a_trial_are_left_to_the_user(tmp_path: pathlib.Path, name: str) -> None:
    run_dir = str(make_run(tmp_path / "aaa", **{name: "{"}))
    mark_pruned(run_dir)
    assert pathlib.Path(layout.attribute(run_dir, name)).read_text() == "{"


@pytest.mark.parametrize("again", ["--restart batch -y", "--start batch -y", "--restart batch --stage -y"])
def test_search_that_is_running_is_not_started_again(home: pathlib.Path, guild: Guild, again: str) -> None:
    guild(f"{SEARCH} --stage")
    before = _records(home)
    with (home / "runs" / "batch" / ".guild" / "dask-search.lock").open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        refused = guild(f"run {again}", exit_code=1).output
        assert refused == "guild: search batch is running already; 'guild stop batch' ends it\n"
        assert _records(home) == before
        with pytest.raises(CannotSearch, match="this search is running already"), Alone(f.name):
            pass  # as when two start at the same moment


def _records(home: pathlib.Path) -> dict[str, bytes]:
    folder = home / "runs" / "batch" / ".guild"
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_file_system_without_locks_is_not_taken_for_a_search_that_is_running(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(CannotSearch, match=r"cannot lock .*/lock: No locks available"), Alone(str(tmp_path / "lock")):
        pass


def test_search_that_goes_on_shows_as_running_and_ends_if_it_is_deleted(home: pathlib.Path, guild: Guild) -> None:
    (home / "enough").touch()
    guild(f"{SEARCH} --max-trials 1 -Fo workers=1")
    (home / "enough").unlink()
    with guild.started("run --restart batch --max-trials 9 -Fo workers=1 -y") as search:
        wait_until(lambda: "running" in _states(home), describe=search.so_far)
        assert status.status(str(home / "runs" / "batch")) is status.Status.RUNNING
        assert json.loads(guild("runs --operation train+dask:random --json").output)[0]["status"] == "running"
        (home / "runs" / "batch").rename(home / "batch")
        (home / "enough").touch()
        ended = search.wait()
    assert ended.output.count("dask:random: the search stops: its run was deleted") == 1, ended
    assert "trying again" not in ended.output
    assert "Traceback" not in ended.output


def test_search_is_deleted_if_its_run_is_gone_and_not_the_folder_of_runs(tmp_path: pathlib.Path) -> None:
    a_search(tmp_path, some_trials(1), SPACE, is_over=False)
    space = space_for_flags(dict(SPACE))
    problem = Problem(str(tmp_path), BATCH, space, (Objective("loss"),), 50)
    journal = SearchJournal(layout.run_dir(str(tmp_path), BATCH))
    search = Search(problem, SearchSettings(), _Asked("tpe", space, ["minimize"], 1), journal, Policy())
    assert not search.is_deleted()
    (tmp_path / "runs").rename(tmp_path / "unmounted")
    assert not search.is_deleted()
    (tmp_path / "unmounted").rename(tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / BATCH)
    assert search.is_deleted()


# Bad days


def test_search_that_guild_has_not_prepared_to_the_end_is_refused_until_it_is(home: pathlib.Path, guild: Guild) -> None:
    # Without the source code, each trial would fail.
    guild(f"{SEARCH} --stage --max-trials 1 --maximize loss")
    proto = home / "runs" / "batch" / ".guild" / "proto"
    (proto / "train.py").unlink()
    (proto / ".guild" / "attrs" / "sourcecode_digest").unlink()
    (home / "enough").touch()
    refused = guild("run --restart batch -y", exit_code=2).output
    command = "run --restart batch --force-sourcecode --maximize loss"
    assert f"in its project, this does it again: guild {command}\n" in refused
    assert len(list((home / "runs").iterdir())) == 1, "nothing was staged"
    assert "Searching with dask:random: maximize loss" in guild(f"{command} -y").output
    assert _states(home) == ["completed"]


def test_search_in_another_folder_is_refused_before_anything_is_staged(home: pathlib.Path, guild: Guild) -> None:
    folder = home.parent / "elsewhere"
    search = SEARCH.replace("--run-id batch", f"--run-dir {folder}")
    refused = guild(f"{search} --max-trials 1 -Fo workers=1", exit_code=2).output
    assert f"dask:random: it cannot search in {folder}: leave out --run-dir\n" in refused
    assert not list(home.glob("runs/*"))


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("batch", "max_trials"),
        ("batch", "random_seed"),
        ("batch/.guild/proto", "trials"),
        ("batch/.guild/proto", "sourcecode_digest"),
    ],
)
def test_search_does_not_begin_with_other_settings_than_those_that_cannot_be_read(
    home: pathlib.Path, guild: Guild, run: str, name: str
) -> None:
    guild(f"{SEARCH} --stage")
    attribute = pathlib.Path(layout.attribute(str(home / "runs" / run), name))
    attribute.unlink(missing_ok=True)
    attribute.mkdir()
    with (home / "runs" / "batch" / ".guild" / "dask-search.lock").open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)  # without the error, it would end here
        environ = {**os.environ, "RUN_ID": "batch", "RUN_DIR": str(home / "runs" / "batch")}
        ended = run_command([sys.executable, "-m", "guild_dask.scheduler.search", "random"], environ, home)
    assert f"cannot use its own run directory: cannot read attribute '{name}'" in ended.output
    assert ended.exit_code == 2


@pytest.mark.parametrize("left", [4, 40])
def test_search_waits_while_the_disk_is_full_and_then_completes_its_trials(
    home: pathlib.Path, user: Sandbox, guild: Guild, left: int
) -> None:
    with disk("tmpfs", home, user.root / "image"):
        with guild.started(f"{SEARCH} --max-trials 4 -Fo workers=2 -Fo poll-interval=0.2") as search:
            wait_until(lambda: _states(home).count("running") == 2, describe=search.so_far)
            fill(home / "filler", left * 1024)
            (home / "enough").touch()
            search.wait_for_output("No space left on device")
            (home / "filler").unlink()
            ended = search.wait()
        assert ended.exit_code == 0, ended
        found = _trials(home)
        assert len({key_of(trial.point) for trial in found}) == len(found) == 4, ended
        runs = [path for path in (home / "runs").iterdir() if path.name != "batch"]
        assert len(runs) == 4, ended
        assert "Traceback" not in ended.output, ended


def test_trial_whose_starter_is_killed_again_and_again_fails(home: pathlib.Path, guild: Guild) -> None:
    with guild.started(f"{SEARCH} --max-trials 1 -Fo workers=1 -Fo retries=1 -Fo poll-interval=0.2") as search:
        killed: list[ProcessIdentity] = []
        for _ in range(2):
            killed.append(_kill_starter(home, killed, search))
        ended = search.wait()
    assert ended.output.count("again (the process that started it was killed)") == 1, ended
    assert "Giving up trial" in ended.output
    assert _states(home) == ["failed"]
    # A user who starts the search again knows that.
    assert "it has had 1 trial(s)" in guild("run --restart batch -y").output


def _kill_starter(home: pathlib.Path, before: Sequence[ProcessIdentity], search: Started) -> ProcessIdentity:
    """Ends the starter of the only running trial, unless it was ended before."""

    def starters() -> list[ProcessIdentity]:
        found = claims.all_claims(layout.claims_folder(str(home)))
        owners = [each.claim.owner for each in found if each.is_started and each.claim]
        return [owner for owner in owners if owner not in before]

    (starter,) = wait_until(starters, describe=search.so_far)
    wait_until(lambda: _states(home) == ["running"], describe=search.so_far)
    os.kill(starter.pid, signal.SIGTERM)
    return starter
