"""Completed runs of the same operation, whoever made them, as observations."""

import math
import os
from collections.abc import Collection, Sequence

from guild_dask.home import layout, run_directory, run_view
from guild_dask.home.run_scalars import read_scalars
from guild_dask.home.status import Status, status
from guild_dask.plan.objectives import Objective, scalar_for
from guild_dask.scheduler.search.engine import Observation
from guild_dask.scheduler.search.space import Space


def observations(
    home: str, proto: str, space: Space, objectives: Sequence[Objective], without: Collection[str]
) -> list[Observation]:
    """Returns the completed runs of the operation of a batch whose flags are in its space, but for those given."""
    try:
        wanted = run_directory.opref(proto).to_opspec()
    except run_directory.BrokenRun:
        return []
    found = []
    runs = layout.runs_dir(home)
    for name in sorted(os.listdir(runs)):
        run_dir = f"{runs}/{name}"
        if name not in without and _is_of(run_dir, wanted) and status(run_dir) is Status.COMPLETED:
            observation = _observation(run_dir, space, objectives)
            found += [observation] if observation else []
    return found


def _is_of(run_dir: str, operation: str) -> bool:
    try:
        return bool(run_directory.opref(run_dir).to_opspec() == operation)
    except run_directory.BrokenRun:
        return False


def _observation(run_dir: str, space: Space, objectives: Sequence[Objective]) -> Observation | None:
    flags = run_view.flags(run_dir)
    if not space.contains(flags):
        return None
    scalars = read_scalars(run_dir)
    found = [(objective, scalar_for(objective, scalars)) for objective in objectives]
    values = tuple(objective.value_of(scalar) for objective, scalar in found if scalar)
    if len(values) < len(objectives) or any(map(math.isnan, values)):
        return None
    return Observation(space.point(flags), values)
