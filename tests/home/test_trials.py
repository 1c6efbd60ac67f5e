"""What became of the trials of a search, by the records of their runs."""

import contextlib
import errno
import json
import os
import pathlib
import re
import shutil
from dataclasses import replace
from typing import Any

import pytest
from guild.summary import SummaryWriter

from guild_dask.home import claims, layout, trials
from guild_dask.home.search_journal import SearchJournal
from guild_dask.host import files
from guild_dask.plan.objectives import Objective
from tests.support.failing_files import Files
from tests.support.searches import BATCH, SPACE, START, GivenTrial, a_claim, a_search, some_trials, trial_id

STATES = [
    ("completed", 0, "", "completed"),
    ("failed", 1, "", "failed"),
    ("pruned", -15, "stopped", "pruned"),
    ("pruned", 143, "stopped", "pruned"),  # it handles SIGTERM
    ("pruned", 0, "", "completed"),
    ("pruned", 0, "stopped", "completed"),  # it had ended by itself before the signal came
    ("failed", -15, "pruned", "pruned"),
    ("failed", 143, "pruned", "pruned"),
    ("pruned", 0, "pruned", "completed"),
    ("failed", 1, "stopped", "stopped"),
    ("failed", -15, "", "stopped"),
    ("failed", -9, "", "failed"),  # its starter was killed with it, as by the kernel
    ("failed", -9, "starter-killed", "cut short"),
    ("failed", -15, "scheduler-stopped", "cut short"),
    ("pruned", -15, "scheduler-stopped", "cut short"),  # before the search could ask it to end
    ("failed", -15, "time-limit", "failed"),
]


@pytest.mark.parametrize(("end", "code", "cause", "expected"), STATES)
def test_state_of_a_trial_that_has_ended(
    tmp_path: pathlib.Path, end: str, code: int, cause: str, expected: str
) -> None:
    a_search(tmp_path, [GivenTrial({"x": 1}, (1.0,), end)], {"x": "[1:9]"})
    attributes = tmp_path / "runs" / trial_id(1) / ".guild" / "attrs"
    (attributes / "exit_status").write_text(str(code))
    if cause:
        (attributes / "dask").write_text(json.dumps({"ended": cause}))
    (found,) = trials.TrialReader(str(tmp_path), BATCH, trials.search(str(tmp_path), BATCH).objectives).read()
    assert found.state.value == expected


@pytest.mark.parametrize(("attempt", "expected"), [(START + 1, "pruned"), (START - 9, "stopped")])
def test_trial_is_pruned_only_if_the_attempt_that_was_stopped_was_to_be(
    tmp_path: pathlib.Path, attempt: int, expected: str
) -> None:
    # After an attempt was lost, it may be the user who stops the next one.
    a_search(tmp_path, [GivenTrial({"x": 1}, (1.0,), "staged")], {"x": "[1:9]"})
    SearchJournal(str(tmp_path / "runs" / BATCH)).add("pruning", trial=trial_id(1), step=1, started=float(attempt))
    records = tmp_path / "runs" / trial_id(1) / ".guild"
    (records / "STAGED").unlink()
    (records / "attrs" / "exit_status").write_text("-15")
    (records / "attrs" / "dask").write_text(json.dumps({"ended": "stopped"}))
    (found,) = trials.TrialReader(str(tmp_path), BATCH, trials.search(str(tmp_path), BATCH).objectives).read()
    assert found.state.value == expected


def test_trial_that_a_kill_left_between_two_markers_is_not_staged(tmp_path: pathlib.Path) -> None:
    # Guild sets STAGED before it removes PENDING; no scheduler would ever take the run.
    a_search(tmp_path, [GivenTrial({"x": 1}, end="staged")], {"x": "[1:9]"})
    run_dir = tmp_path / "runs" / trial_id(1)
    folder = layout.claims_folder(str(tmp_path))
    assert trials.was_staged(str(run_dir), folder)
    (run_dir / ".guild" / "PENDING").touch()
    assert not trials.was_staged(str(run_dir), folder)


def test_trial_that_is_given_back_while_it_is_read_has_not_failed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A scheduler that gives a run back removes PENDING before it returns STAGED.
    a_search(tmp_path, [GivenTrial({"x": 1}, end="staged")], {"x": "[1:9]"})
    staged = tmp_path / "runs" / trial_id(1) / ".guild" / "STAGED"
    staged.unlink()
    present = claims.present

    def give_back_first(folder: pathlib.Path, run_id: str) -> claims.Found | None:
        staged.touch()
        return present(folder, run_id)

    monkeypatch.setattr(claims, "present", give_back_first)
    (found,) = trials.TrialReader(str(tmp_path), BATCH, trials.search(str(tmp_path), BATCH).objectives).read()
    assert found.state is trials.TrialState.WAITING


@pytest.mark.parametrize(("has_end", "seen"), [(True, "completed"), (False, "cut short")])
def test_view_does_not_wait_for_the_next_scheduler_of_a_trial(tmp_path: pathlib.Path, has_end: bool, seen: str) -> None:
    # A search leaves a run with a claim to schedulers: the next one may start it again.
    a_search(tmp_path, [GivenTrial({"x": 1}, (1.0,))], {"x": "[1:9]"})
    a_claim(str(tmp_path), trial_id(1), dead=True)
    if not has_end:
        (tmp_path / "runs" / trial_id(1) / ".guild" / "attrs" / "exit_status").unlink()
    objectives = trials.search(str(tmp_path), BATCH).objectives
    for is_view, expected in ((False, "running"), (True, seen)):
        (found,) = trials.TrialReader(str(tmp_path), BATCH, objectives, is_view=is_view).read()
        assert found.state.value == expected
    a_claim(str(tmp_path), trial_id(1), dead=False)
    (found,) = trials.TrialReader(str(tmp_path), BATCH, objectives, is_view=True).read()
    assert found.state.value == "running"


def test_end_of_a_trial_counts_only_when_its_scalars_can_be_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A completed trial without the objective would stop the search.
    a_search(tmp_path, [GivenTrial({"x": 1}, (1.0,))], {"x": "[1:9]"})
    reader = trials.TrialReader(str(tmp_path), BATCH, trials.search(str(tmp_path), BATCH).objectives)
    open_file = files.open_file

    def refuse(path: files.Path, folder: int | None = None) -> int:
        if "tfevents" in str(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return open_file(path, folder=folder)

    with monkeypatch.context() as short:
        short.setattr(files, "open_file", refuse)
        (found,) = reader.read()
        assert found.state is trials.TrialState.RUNNING
    (found,) = reader.read()
    assert (found.state, found.values) == (trials.TrialState.COMPLETED, (1.0,))


@pytest.mark.parametrize(
    ("end", "code", "cause"),
    [("completed", 0, ""), ("pruned", -15, "stopped"), ("failed", -15, "scheduler-stopped"), ("failed", 1, "stopped")],
)
def test_trial_that_has_ended_is_read_as_it_is_whatever_file_could_not_be_read(
    tmp_path: pathlib.Path, failing: Files, end: str, code: int, cause: str
) -> None:
    # What an ended trial is, is kept: it must not be what one failed read makes of it.
    a_search(tmp_path, [GivenTrial({"x": 1}, (1.0,), end)], {"x": "[1:9]"})
    attributes = tmp_path / "runs" / trial_id(1) / ".guild" / "attrs"
    (attributes / "exit_status").write_text(str(code))
    if cause:
        (attributes / "dask").write_text(json.dumps({"ended": cause}))
    search = trials.search(str(tmp_path), BATCH)
    log, objectives = search.log, search.objectives
    log.pruning = {trial_id(1): {float(START + 1)}} if end == "pruned" else {}
    (right,) = trials.TrialReader(str(tmp_path), BATCH, objectives).read(log)
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        reader = trials.TrialReader(str(tmp_path), BATCH, objectives)
        with failing.failing(chosen), contextlib.suppress(OSError):
            (found,) = reader.read(log)
            assert found.state in (right.state, trials.TrialState.RUNNING), f"file {chosen} could not be read"
        assert reader.read(log) == [right], f"after file {chosen} could not be read"
    assert chosen > 10


def test_search_is_read_as_it_is_or_not_at_all_whatever_file_cannot_be_read(
    tmp_path: pathlib.Path, failing: Files
) -> None:
    # Without its options, it would have the objective of the start before.
    a_search(tmp_path, some_trials(1), SPACE)
    attributes = tmp_path / "runs" / BATCH / ".guild" / "attrs"
    (attributes / "run_params").write_text("{maximize: accuracy}")
    right = trials.search(str(tmp_path), BATCH)
    assert right.objectives == (Objective("accuracy", is_maximized=True),)
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        with failing.failing(chosen), contextlib.suppress(OSError):
            found = trials.search(str(tmp_path), BATCH)
            assert replace(found, operation=right.operation, optimizer=right.optimizer) == right, f"file {chosen}"
    assert chosen > 10


def test_objective_with_a_folder_is_that_of_the_folder(tmp_path: pathlib.Path) -> None:
    a_search(tmp_path, [GivenTrial({"x": 1})], {"x": "[1:9]"}, objective="val#loss")
    run_dir = tmp_path / "runs" / trial_id(1)
    reader = trials.TrialReader(str(tmp_path), BATCH, trials.search(str(tmp_path), BATCH).objectives, with_curves=True)
    for folder, value in (("train", 1.0), ("val", 2.0)):
        with SummaryWriter(str(run_dir / folder)) as writer:
            writer.add_scalar("loss", value, 3)
    (found,) = reader.read()
    assert found.values == (2.0,)
    assert found.curves == ({3: 2.0},)


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_trial_that_cannot_be_reached_is_not_taken_for_a_deleted_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    # A deleted trial does not count, so that another one would be proposed in its place.
    a_search(tmp_path, some_trials(1), SPACE)
    reader = trials.TrialReader(str(tmp_path), BATCH, trials.search(str(tmp_path), BATCH).objectives)
    stat = os.stat

    def refuse(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if trial_id(1) in str(path):
            raise OSError(error, os.strerror(error), path)
        return stat(path, *args, **options)

    with monkeypatch.context() as short:
        short.setattr(os, "stat", refuse)
        with pytest.raises(OSError, match=re.escape(os.strerror(error))):
            reader.read()
    shutil.rmtree(tmp_path / "runs" / trial_id(1))
    (found,) = reader.read()
    assert found.state is trials.TrialState.DELETED
