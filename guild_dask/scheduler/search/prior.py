"""Completed runs of the same operation, whoever made them, as observations."""

import math
import os
from collections.abc import Collection, Sequence
from typing import Any

from guild_dask.home import layout, run_directory, run_view
from guild_dask.home.run_scalars import MOST_READ, ScalarReader
from guild_dask.home.status import Status, known_status
from guild_dask.plan.objectives import Objective
from guild_dask.scheduler.search.engine import Observation
from guild_dask.scheduler.search.space import Space

# The most bytes of a run's event files that are read.
_MOST_READ = 4 * MOST_READ


def observations(
    home: str, proto: str, space: Space, objectives: Sequence[Objective], without: Collection[str]
) -> list[Observation]:
    """Returns the completed runs of the operation of a batch whose flags are in its space, but for those given.

    Runs that cannot be read are left out: what is known before only helps.
    """
    try:
        wanted = _operation(proto)
    except run_directory.BrokenRun:
        return []
    found = []
    runs = layout.runs_dir(home)
    for name in sorted(os.listdir(runs)):
        run_dir = layout.run_in(runs, name)
        if name not in without and _is_of(run_dir, wanted) and known_status(run_dir) is Status.COMPLETED:
            observation = _observation(run_dir, space, objectives)
            found += [observation] if observation else []
    return found


def _is_of(run_dir: str, operation: tuple[Any, ...]) -> bool:
    try:
        return _operation(run_dir) == operation
    except run_directory.BrokenRun:
        return False


def _operation(run_dir: str) -> tuple[Any, ...]:
    """Returns what identifies the operation of a run: the project, and the name in it; raises BrokenRun."""
    found = run_directory.opref(run_dir)
    return found.pkg_type, found.pkg_name, found.model_name, found.op_name


def _observation(run_dir: str, space: Space, objectives: Sequence[Objective]) -> Observation | None:
    flags = run_view.flags(run_dir)
    if not space.contains(flags):
        return None
    reader = ScalarReader(run_dir, {each.tag for each in objectives})
    reader.update(_MOST_READ)
    found = [(objective, reader.find(objective.scalar)) for objective in objectives]
    values = tuple(objective.value_of(scalar) for objective, scalar in found if scalar)
    if len(values) < len(objectives) or any(map(math.isnan, values)):
        return None
    return Observation(space.point(flags), values, run=layout.run_id(run_dir))
