"""The status of runs that other runs come after, looked up by id or the beginning of one."""

import bisect
import functools
import itertools
import os
import pathlib
from collections.abc import Collection, Iterable, Iterator, Sequence

from guild_dask.home import claims, layout, run_directory
from guild_dask.home.errors import HomeUnavailable, may_concern_one_run
from guild_dask.home.status import Status, status
from guild_dask.host import files, shortage
from guild_dask.plan.dependencies import Found, RunStatus

# How many runs are named for an ambiguous id.
_NAMED = 3


def found(
    runs_dir: str, claims_folder: pathlib.Path, vanished: Collection[str], references: Iterable[str]
) -> dict[str, Found]:
    """Returns, for each id of a run or beginning of one, the run that it means and its status.

    `vanished` are runs that completed and were deleted: Guild deletes a batch that has succeeded. Raises
    HomeUnavailable if the home cannot be read.
    """
    try:
        return _all_found(runs_dir, claims_folder, vanished, references)
    except OSError as e:
        raise HomeUnavailable(f"cannot look up runs in {runs_dir}: {shortage.text_for(e)}") from e


def _all_found(
    runs_dir: str, claims_folder: pathlib.Path, vanished: Collection[str], references: Iterable[str]
) -> dict[str, Found]:
    names: list[str] | None = None  # read with the first reference that is no whole id
    over = sorted(vanished)
    is_run = functools.cache(functools.partial(_is_run, runs_dir))
    known = {}
    for reference in set(references):
        if names is None and is_run(reference):
            run_ids: Sequence[str] = (reference,)
        else:
            names = sorted(files.names(runs_dir)) if names is None else names
            matching = (name for name in _beginning_with(reference, names) if is_run(name))
            run_ids = tuple(itertools.islice(matching, _NAMED))
            run_ids = run_ids[:1] if reference in run_ids else run_ids  # a whole id is the first in order
        known[reference] = _found(runs_dir, claims_folder, run_ids)
        if not run_ids:
            gone = tuple(itertools.islice(_beginning_with(reference, over), 2))
            known[reference] = Found(RunStatus.COMPLETED, gone) if len(gone) == 1 else Found(RunStatus.UNKNOWN)
    return known


def _beginning_with(text: str, ordered: Sequence[str]) -> Iterator[str]:
    """Yields those of the names, which are sorted, that begin with a text."""
    names = (ordered[i] for i in range(bisect.bisect_left(ordered, text), len(ordered)))
    return itertools.takewhile(lambda name: name.startswith(text), names)


def _is_run(runs_dir: str, name: str) -> bool:
    return os.path.basename(name) == name and run_directory.is_run(layout.run_in(runs_dir, name))


def names_of_runs(runs_dir: str) -> list[str]:
    """Returns the names in the runs directory, in no order; none if it cannot be read."""
    try:
        return os.listdir(runs_dir)
    except OSError:
        return []


def _found(runs_dir: str, claims_folder: pathlib.Path, run_ids: Sequence[str]) -> Found:
    if len(run_ids) != 1:
        return Found(RunStatus.AMBIGUOUS, tuple(run_ids)) if run_ids else Found(RunStatus.UNKNOWN)
    # For moments, Guild shows a starting run as failed. A run with a claim goes on.
    if claims.written(claims_folder, run_ids[0]):
        return Found(RunStatus.GOES_ON, tuple(run_ids))
    try:
        found = _STATUSES[status(layout.run_in(runs_dir, run_ids[0]))]
    except OSError as e:
        if not may_concern_one_run(e):
            raise
        found = RunStatus.GOES_ON  # those that come after it wait until it can be read; others do not
    return Found(found, tuple(run_ids))


# What Guild's status of a run means for the runs that come after it.
_STATUSES = {
    Status.RUNNING: RunStatus.GOES_ON,
    Status.PENDING: RunStatus.GOES_ON,
    Status.STAGED: RunStatus.STAGED,
    Status.COMPLETED: RunStatus.COMPLETED,
    Status.TERMINATED: RunStatus.TERMINATED,
    Status.ERROR: RunStatus.FAILED,
}
