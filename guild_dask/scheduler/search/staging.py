"""Makes and stages the runs of trials, as Guild's own batches do it.

A trial's run directory has Guild's PENDING marker from its first moment until it is staged. So no scheduler takes half
of it, and a search that was killed in between finds it, and completes it.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from guild_dask.home import layout, run_directory, run_queue
from guild_dask.home.errors import raise_if_of_home
from guild_dask.home.search_journal import Proposal, SearchJournal
from guild_dask.home.trials import ATTRIBUTE, PRUNED, was_staged
from guild_dask.scheduler.search.space import key_of


class CannotStage(Exception):
    """Guild does not stage the trial; the text says why."""


class Stager:
    """Stages the trials of one search."""

    def __init__(self, home: str, batch: str, journal: SearchJournal) -> None:
        from guild import run as guild_run

        self._home = home
        self._claims = layout.claims_folder(home)
        self._batch = guild_run.Run(batch, layout.run_dir(home, batch))
        self._journal = journal

    def new_id(self) -> str:
        """Returns the id of a run that does not exist."""
        from guild import run as guild_run

        return str(guild_run.mkid())

    def stage(self, proposal: Proposal, flags: Mapping[str, Any]) -> None:
        """Makes the run of a proposed trial, unless it is there, and stages it; raises OSError or CannotStage."""
        run_dir = layout.run_dir(self._home, proposal.trial)
        if not was_staged(run_dir, self._claims):
            self._make(run_dir, proposal, flags)
            _stage(run_dir)
        self._journal.add("staged", trial=proposal.trial)

    def is_damaged(self, proposal: Proposal) -> bool:
        """Returns whether a staged run is not what was staged: a power failure may lose what was just written."""
        run_dir = layout.run_dir(self._home, proposal.trial)
        if not was_staged(run_dir, self._claims):
            return True
        if not run_directory.has(run_dir, layout.STAGED):
            return False
        try:
            run_directory.read_staged(run_dir)
            found = run_directory.attribute(run_dir, "flags")
            if not isinstance(found, dict):
                return True
            # Flags that are not on record are not compared: a restart may have changed those of the search.
            expected = proposal.point if proposal.flags is None else proposal.flags
            has_others = proposal.flags is not None and found.keys() != expected.keys()
            # Names that are no texts cannot be sorted, as a key needs them.
            return has_others or not found.keys() >= expected.keys() or not _are_same(found, expected)
        except run_directory.BrokenRun as e:
            raise_if_of_home(e)
            return run_directory.has(run_dir, layout.STAGED)

    def unstage(self, trial: str) -> None:
        """Takes a run out of the queue, so that stage() makes it anew, unless a scheduler has just taken it."""
        run_queue.unstage(self._home, trial)

    def _make(self, run_dir: str, proposal: Proposal, flags: Mapping[str, Any]) -> None:
        from guild import batch_util

        pathlib.Path(layout.attributes(run_dir)).mkdir(parents=True, exist_ok=True)
        run_directory.set_marker(run_dir, layout.PENDING)
        run = batch_util.init_trial_run(self._batch, dict(flags), run_dir)
        run.write_attr(ATTRIBUTE, {"batch": str(self._batch.id), "number": proposal.number})


def _are_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return key_of({name: found[name] for name in expected}) == key_of(expected)


def _stage(run_dir: str) -> None:
    from guild.commands import run_impl

    try:
        run_impl.run(restart=run_dir, stage=True, quiet=True)
    except SystemExit as e:  # how Guild reports errors
        message = e.args[0] if e.args else ""
        raise CannotStage(str(message[0] if isinstance(message, tuple) else message)) from e


def mark_pruned(run_dir: str) -> None:
    """Tags and labels a run that was ended early, once, unless its tags or its label are damaged; raises OSError."""
    try:
        tags = run_directory.tags(run_dir)
        label = str(run_directory.attribute(run_dir, "label") or "")
    except run_directory.BrokenRun as e:
        raise_if_of_home(e)
        return
    if PRUNED in tags:
        return
    if PRUNED not in label.split():  # a kill may have left it with the label, and without the tag
        run_directory.write_label(run_dir, f"{PRUNED} {label}".strip())
    run_directory.write_tags(run_dir, [*tags, PRUNED])
