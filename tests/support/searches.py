"""A search on disk, for views: its run, its journal, and the runs of its trials with their scalars."""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from guild.summary import SummaryWriter

from guild_dask.home import claims, layout, trials
from guild_dask.home.claim_record import Claim
from guild_dask.home.search_journal import SearchJournal
from guild_dask.host import processes
from guild_dask.monitor.searches import SearchPublisher
from guild_dask.plan.search_ends import TrialsUsed, data_for_end

BATCH = "b" * 32
START = 1_700_000_000


class GivenTrial(NamedTuple):
    """A trial: its flags, the values of its scalars by step, and how it ended."""

    point: Mapping[str, Any]
    losses: Sequence[float] = ()
    end: str = "completed"
    scalars: Mapping[str, float] = {}  # of further scalars, one value each


def trial_id(number: int) -> str:
    return f"{number:04x}" + "e" * 28


def a_search(
    home: pathlib.Path,
    given: Sequence[GivenTrial],
    space: Mapping[str, Any],
    objective: str = "loss",
    is_over: bool = True,
) -> None:
    """Writes a search whose trials ended one second after the other, and publishes it."""
    batch = home / "runs" / BATCH
    _run(batch, "dask:tpe", objective=objective, max_trials=50, initialized=START * 10**6, exit_status=0, flags={})
    _run(batch / ".guild" / "proto", "train", flags=dict(space))
    journal = SearchJournal(str(batch))
    journal.add("started", host="here", pid=1)
    for number, trial in enumerate(given, 1):
        journal.add("proposed", trial=trial_id(number), number=number, point=trial.point)
        journal.add("staged", trial=trial_id(number))
        if trial.end == "pruned":
            journal.add("pruning", trial=trial_id(number), step=len(trial.losses))
        _trial(home / "runs" / trial_id(number), trial, number)
    if is_over:
        journal.add("ended", why=data_for_end(TrialsUsed(len(given))))
    found = trials.search(str(home), BATCH)
    SearchPublisher(str(home), BATCH).publish(
        trials.TrialReader(str(home), BATCH, found.objectives).read(found.log), found.log
    )


def _trial(run_dir: pathlib.Path, trial: GivenTrial, number: int) -> None:
    at = (START + number) * 10**6
    is_staged = trial.end == "staged"
    code = {"completed": 0, "pruned": -15}.get(trial.end, 1)
    ended = {} if is_staged else {"exit_status": code, "stopped": at + 10**6}
    _run(
        run_dir,
        "train",
        flags=dict(trial.point),
        tags=[],
        started=at,
        initialized=at,
        dask_search={"batch": BATCH},
        **ended,
    )
    if is_staged:
        (run_dir / ".guild" / "STAGED").touch()
    with SummaryWriter(str(run_dir / ".guild")) as writer:
        for step, value in enumerate(trial.losses, 1):
            writer.add_scalar("loss", value, step)
        for name, value in trial.scalars.items():
            writer.add_scalar(name, value, len(trial.losses))


def _run(run_dir: pathlib.Path, operation: str, **attributes: Any) -> None:
    folder = run_dir / ".guild"
    (folder / "attrs").mkdir(parents=True, exist_ok=True)
    model, _, name = operation.rpartition(":")
    (folder / "opref").write_text(f"guildfile:/x 1 '{model}' {name}\n")
    (folder / "output").write_text("")
    for each, value in attributes.items():
        (folder / "attrs" / each).write_text(json.dumps(value))


def a_claim(home: str, run_id: str, *, dead: bool) -> None:
    """Writes the claim of a run that has started, whose starter is this process or one that is dead."""
    me = processes.identity(os.getpid())
    assert me
    starter = replace(me, started=me.started - 1) if dead else me
    folder = layout.claims_folder(home)
    claims.remove(folder, run_id)
    claims.mark_started(claims.write(folder, Claim(run_id, BATCH, starter, starter)))


def some_trials(count: int = 12) -> list[GivenTrial]:
    """Returns trials of which every fourth was pruned; the best is the one with lr nearest to 0.01."""
    found = []
    for number in range(count):
        lr = 10.0 ** (-5 + 4 * number / max(1, count - 1))
        last = 0.1 + abs(lr - 0.01)
        losses = [last + 1 / step for step in range(1, 5)]
        is_pruned = number % 4 == 3
        point = {"lr": lr, "layers": 1 + number % 3, "act": ("relu", "tanh")[number % 2]}
        found.append(GivenTrial(point, losses[:2] if is_pruned else losses, "pruned" if is_pruned else "completed"))
    return found


SPACE = {"lr": "loguniform[1e-5:1e-1]", "layers": "[1:3]", "act": ["relu", "tanh"], "epochs": 4}
