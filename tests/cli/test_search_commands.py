"""Searches in the terminal: `guild-dask status`, `best` and `export-study`, as a user types them."""

import json
import math
import os
import pathlib
import time

import pytest
from guild.summary import SummaryWriter

from guild_dask.home import trials
from guild_dask.monitor import searches
from guild_dask.monitor.searches import SearchPublisher
from tests.cli.test_commands import data_of, typed
from tests.cli.test_completion import offered
from tests.support.sandbox import Sandbox
from tests.support.searches import BATCH, SPACE, GivenTrial, a_claim, a_search, some_trials, trial_id

SEVERAL = [
    GivenTrial({"lr": 0.1}, [1.0], scalars={"latency": 5.0}),
    GivenTrial({"lr": 0.2}, [2.0], scalars={"latency": 1.0}),
    GivenTrial({"lr": 0.3}, [2.0], scalars={"latency": 6.0}),
]


def test_status_shows_searches_with_their_best_trial(user: Sandbox) -> None:
    a_search(user.guild_home, some_trials(), SPACE)
    output = typed("status").output
    assert "12/50" in output
    assert "loss 0.3" in output
    assert "act=relu" in output
    [search] = data_of("status --json")["searches"]
    assert search["counts"]["pruned"] == 3
    assert search["best"][0]["run"] == trial_id(9)
    assert search["ended"] == {"kind": "TrialsUsed", "trials": 12, "text": "it has had 12 trial(s)"}


def test_best_shows_the_newest_search_or_the_one_of_a_trial(user: Sandbox) -> None:
    a_search(user.guild_home, some_trials(), SPACE)
    lines = typed("best -n 2").output.splitlines()
    assert lines[1] == "minimize loss: 9 completed, 3 pruned of 50 trials"
    assert [line.split()[0] for line in lines[3:6]] == ["TRIAL", trial_id(9)[:8], trial_id(7)[:8]]
    assert lines[-1] == "... and 7 more; -n 9 shows them"
    for given in ("bbbb", trial_id(1)[:6]):
        found = data_of(f"best {given} --json -n 1")
        assert found["search"] == BATCH
        assert [each["run"] for each in found["best"]] == [trial_id(9)]
    assert len(data_of("best --json")["best"]) == 9


def test_search_that_was_killed_is_shown_with_what_its_trials_achieved_since(user: Sandbox) -> None:
    # The next scheduler decides how its last trials ended; until then, they have claims.
    given = [GivenTrial({"lr": 0.1}, [2.0]), GivenTrial({"lr": 0.2}, [1.0])]
    a_search(user.guild_home, given, {"lr": "[0.1:0.5]"}, is_over=False)
    (user.guild_home / "runs" / BATCH / ".guild" / "attrs" / "host").write_text(os.uname().nodename)
    a_claim(str(user.guild_home), trial_id(2), dead=True)
    search = trials.search(str(user.guild_home), BATCH)
    reader = trials.TrialReader(str(user.guild_home), BATCH, search.objectives)
    SearchPublisher(str(user.guild_home), BATCH).publish(reader.read(search.log), search.log)
    [published] = searches.shown(str(user.guild_home), time.time())
    assert published.summary.counts["running"] == 1
    go_on = "was cut short; go on with: guild run --restart bbbbbbbb"
    lines = typed("best").output.splitlines()
    assert lines[1:3] == ["minimize loss: 2 completed of 50 trials", f"The search {go_on}"]
    assert lines[5].split()[0] == trial_id(2)[:8]
    output = typed("status").output
    assert "2/50" in output
    assert trial_id(2)[:8] in output
    assert f"Search bbbbbbbb {go_on}" in output
    assert data_of("best --json")["is_cut_short"]
    assert data_of("status --json")["searches"][0]["counts"]["completed"] == 2


def test_row_of_a_search_is_as_short_as_that_of_its_trials(user: Sandbox) -> None:
    a_search(user.guild_home, some_trials(2), {"lr": "[0.1:0.5]"})
    records = user.guild_home / "runs" / BATCH / ".guild"
    (records / "opref").write_text("builtin:guild-dask 0.1.0 dask tpe")
    (records / "attrs" / "flags").write_text(json.dumps({"workers": 2, "max-time": None, "resources": None}))
    with SummaryWriter(str(records)) as writer:
        writer.add_scalar("runs_completed", 2, 1)
    head, *rows = typed("runs").output.splitlines()
    [row] = [row.split() for row in rows if row.startswith(BATCH[:8])]
    assert head.split() == ["RUN", "OPERATION", "FLAGS", "STATUS", "loss", "WHEN"]
    assert row[:5] == [BATCH[:8], "train+dask:tpe", "workers=2", "completed", "-"]
    [found] = [each for each in data_of("runs") if each["run"] == BATCH]
    assert found["flags"]["max-time"] is None, "--json has everything"
    assert found["scalars"] == {"runs_completed": 2}
    assert data_of("best --json")["optimizer"] == "dask:tpe"


def test_results_of_each_operation_are_shown_in_a_narrow_terminal(
    user: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [GivenTrial({"lr": 0.1}, [2.0]), GivenTrial({"lr": 0.2}, [1.0]), GivenTrial({}, scalars={"acc": 0.9})]
    a_search(user.guild_home, given, {"lr": "[0.1:0.5]"})
    monkeypatch.setenv("COLUMNS", "80")
    head, *rows = typed("runs --completed").output.splitlines()
    assert head.split()[-3:] == ["loss", "acc", "WHEN"]
    assert any(row.startswith(trial_id(3)[:8]) and " 0.9 " in row for row in rows)


def test_best_of_several_objectives_is_the_pareto_set(user: Sandbox) -> None:
    a_search(user.guild_home, SEVERAL, {"lr": "[0.1:0.5]"}, objective="loss latency")
    assert "Pareto set: 2 trial(s)" in typed("best").output
    assert [each["values"] for each in data_of("best --json")["best"]] == [[1.0, 5.0], [2.0, 1.0]]
    assert "(1 of 2)" in typed("status").output


def test_value_in_json_is_the_one_that_was_printed(user: Sandbox) -> None:
    # Event files store 0.9 as 0.8999999761581421.
    a_search(user.guild_home, [GivenTrial({"lr": 0.1}, [0.9])], {"lr": "[0.1:0.5]"})
    assert [each["values"] for each in data_of("best --json")["best"]] == [[0.9]]


def test_what_is_no_search_is_named(user: Sandbox) -> None:
    (user.guild_home / "runs").mkdir(parents=True)
    assert "there is no search on this Guild home" in typed("best", exit_code=1).output
    a_search(user.guild_home, some_trials(1), SPACE)
    os.rename(user.guild_home / "runs" / BATCH, user.guild_home / "runs" / ("c" * 32))
    os.remove(user.guild_home / "runs" / ("c" * 32) / ".guild" / "dask-search.jsonl")
    assert "is neither a search that has begun nor a trial" in typed("best ccc", exit_code=1).output
    assert "there is no run" in typed("export-study nope study.log", exit_code=1).output
    assert not os.path.exists("study.log")


def test_flags_of_a_search_cannot_control_the_terminal(user: Sandbox) -> None:
    a_search(user.guild_home, [GivenTrial({"name": "\x1b[31mred"}, [1.0])], {"name": ["\x1b[31mred", "b"]})
    assert "\x1b" not in typed("best").output
    assert "\x1b" not in typed("status").output


def test_shell_offers_searches(user: Sandbox) -> None:
    a_search(user.guild_home, some_trials(1), SPACE)
    assert offered("best ") == [BATCH]
    assert offered("export-study b") == [BATCH]


def test_exported_study_has_the_same_trials(user: Sandbox, tmp_path: pathlib.Path) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    given = [*some_trials(), GivenTrial({"lr": 0.05, "layers": 2, "act": "relu"}, [], "error")]
    given += [GivenTrial({"lr": 0.06, "layers": 2, "act": "relu"}, [math.nan])]
    given += [GivenTrial({"lr": 0.07, "layers": 2, "act": "relu"}, [], "staged")]
    a_search(user.guild_home, given, SPACE)
    file = tmp_path / "exported" / "a study.log"
    file.parent.mkdir()
    assert f"Wrote 14 trial(s) to {file}" in typed(f"export-study bbb '{file}'").output
    assert os.listdir(file.parent) == [file.name]
    study = optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(file))))
    objectives = trials.search(str(user.guild_home), BATCH).objectives
    found = trials.TrialReader(str(user.guild_home), BATCH, objectives, with_curves=True)
    own = [each for each in found.read() if each.id != trial_id(15)]
    assert [each.user_attrs["guild_run"] for each in study.trials] == [each.id for each in own]
    assert [each.params for each in study.trials] == [dict(each.point) for each in own]
    assert [each.intermediate_values for each in study.trials[:12]] == [dict(each.curves[0]) for each in own[:12]]
    assert [each.state.name for each in study.trials[:4]] == ["COMPLETE", "COMPLETE", "COMPLETE", "PRUNED"]
    assert [each.state.name for each in study.trials[12:]] == ["FAIL", "FAIL"]
    assert study.best_trial.user_attrs["guild_run"] == trial_id(9)
    assert study.metric_names == ["loss"]
    before = file.read_bytes()
    assert "exists already" in typed(f"export-study bbb '{file}'", exit_code=1).output
    assert file.read_bytes() == before


def test_export_needs_no_name_but_that_of_its_file(user: Sandbox, tmp_path: pathlib.Path) -> None:
    a_search(user.guild_home, some_trials(), SPACE)
    draft = tmp_path / "study.log.draft"
    draft.write_text("the user's own")
    typed(f"export-study bbb {tmp_path / 'study.log'}")
    assert draft.read_text() == "the user's own"
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith("study")) == [
        "study.log",
        "study.log.draft",
    ]
    assert "cannot write" in typed(f"export-study bbb {tmp_path / 'missing' / 'study.log'}", exit_code=1).output


def test_choices_that_optuna_cannot_tell_apart_are_exported_as_texts(user: Sandbox, tmp_path: pathlib.Path) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    options = [1, True, "1"]
    given = [GivenTrial({"x": value}, [float(place)]) for place, value in enumerate(options)]
    a_search(user.guild_home, given, {"x": options})
    typed(f"export-study bbb {tmp_path / 'study.log'}")
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))
    study = optuna.load_study(study_name=None, storage=storage)
    assert [each.params["x"] for each in study.trials] == ["1", "True", "'1'"]


def test_json_of_a_search_with_infinite_values_can_be_read_by_all(user: Sandbox) -> None:
    a_search(user.guild_home, [GivenTrial({"lr": 0.1}, [math.inf])], {"lr": "[0.1:0.5]"})
    for command in ("best --json", "status --json"):
        data = json.loads(typed(command).output, parse_constant=lambda name: f"not JSON: {name}")
        assert "not JSON" not in json.dumps(data)
