"""Optuna, through ask and tell: what is known goes in, points to try come out. Nothing of Optuna leaves this module.

A study is made anew for each call, from all that is known. So there is no second record of the trials beside their run
directories, which could differ from them.
"""

import contextlib
import itertools
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from guild_dask.scheduler.search.space import Choices, Dimension, Point, Range, Space, key_of

INSTALL = "pip install 'optuna>=5,<6'"

# How often Optuna is asked for a point that is new. In a small space, what it finds best may be what it knows best.
_MOST_ASKED = 20
# If it has none, the first new point that is left is taken; in a space that is larger than that, one at random.
_MOST_LISTED = 100_000
_MOST_DRAWN = 1000


class EngineMissing(Exception):
    """A package is not installed, or cannot be loaded; the text says what to install."""


@dataclass(frozen=True)
class Observation:
    """A trial that has ended."""

    point: Point
    values: tuple[float, ...] | None  # None: it failed
    pruned: Mapping[int, float] | None = None  # its values by step, if it was ended early
    run: str = ""  # the id of a run that is no trial of the search


@dataclass(frozen=True)
class Knowledge:
    """What is known when points are proposed."""

    observations: Sequence[Observation] = ()
    running: Sequence[Point] = ()
    avoided: frozenset[Any] = field(default_factory=frozenset)  # keys of points that must not be proposed
    is_begun: bool = False  # the search has trials, so that the first values of its space have been proposed


class Engine:
    """Proposes points of one space."""

    def __init__(
        self, kind: str, space: Space, directions: Sequence[str], seed: int, most_asked: int = _MOST_ASKED
    ) -> None:
        """Loads Optuna; raises EngineMissing if it, or a package of the kind's own, is not installed."""
        self._optuna = _optuna(kind)
        self._kind = kind
        self._space = space
        self._directions = list(directions)
        self._seed = seed
        self._most_asked = most_asked
        self._distributions = {name: self._distribution(each) for name, each in space.dimensions.items()}

    def propose(self, known: Knowledge, count: int) -> list[dict[str, Any]]:
        """Returns new points, fewer than `count` only if no more are left in the space."""
        found: list[dict[str, Any]] = []
        avoided = set(known.avoided)
        with _quiet():
            study = self._study(known)
            if self._space.first and not known.is_begun:
                study.enqueue_trial(self._encoded(self._space.first))
            for _ in range(count):
                # Each point has random numbers of its own, however many are proposed at a time, also after a restart.
                study.sampler = self._sampler(self._seed_at(len(avoided)))
                point = self._next(study, avoided)
                if point is None:
                    break
                avoided.add(key_of(point))
                found.append(point)
        return found

    def _next(self, study: Any, avoided: set[Any]) -> dict[str, Any] | None:
        for _ in range(self._most_asked):
            trial = study.ask(self._distributions)
            point = self._decoded(trial.params)
            if key_of(point) not in avoided:
                return point
            study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        if self._space.size > _MOST_LISTED:
            return self._random_point(avoided)
        return next((point for point in _all_points(self._space) if key_of(point) not in avoided), None)

    def _random_point(self, avoided: set[Any]) -> dict[str, Any] | None:
        """Returns a new point of a space that is much larger than what was tried; None if chance finds none."""
        sampler = self._optuna.samplers.RandomSampler(seed=self._seed_at(len(avoided)))
        study = self._optuna.create_study(sampler=sampler, directions=self._directions)
        for _ in range(_MOST_DRAWN):
            point = self._decoded(study.ask(self._distributions).params)
            if key_of(point) not in avoided:
                return point
        return None

    def _seed_at(self, count: int) -> int:
        """Returns the seed for the next point after so many known ones."""
        return zlib.crc32(f"{self._seed}/{count}".encode())

    def _study(self, known: Knowledge) -> Any:
        study = self._optuna.create_study(sampler=self._sampler(self._seed_at(0)), directions=self._directions)
        study.add_trials(self._told(each) for each in known.observations)
        for point in known.running:
            study.enqueue_trial(self._encoded(point))
            study.ask(self._distributions)
        return study

    def _sampler(self, seed: int) -> Any:
        samplers = self._optuna.samplers
        if self._kind == "random":
            return samplers.RandomSampler(seed=seed)
        if self._kind == "gp":
            return samplers.GPSampler(seed=seed)
        # Multivariate for one objective, and with the constant liar, as Optuna 5 has it by default.
        return samplers.TPESampler(seed=seed)

    def _told(self, observation: Observation) -> Any:
        state = self._optuna.trial.TrialState
        steps = observation.pruned
        told: dict[str, Any] = {"state": state.COMPLETE, "values": observation.values}
        if observation.values is None:
            told = {"state": state.FAIL}
        elif steps is not None:
            told = {"state": state.PRUNED, "intermediate_values": dict(steps)}
        return self._optuna.trial.create_trial(
            params=self._encoded(observation.point), distributions=self._distributions, **told
        )

    def _distribution(self, dimension: Dimension) -> Any:
        kinds = self._optuna.distributions
        if isinstance(dimension, Choices):
            # By their place: Optuna takes 1, 1.0 and true for the same, and no lists.
            return kinds.CategoricalDistribution(range(len(dimension.options)))
        low, high = dimension.low, dimension.high
        if dimension.step:
            # By the number of steps: Optuna's own steps have rounding errors.
            return kinds.IntDistribution(0, int(dimension.size) - 1)
        if dimension.is_integer:
            return kinds.IntDistribution(int(low), int(high), log=dimension.is_log)
        return kinds.FloatDistribution(float(low), float(high), log=dimension.is_log)

    def _encoded(self, point: Point) -> dict[str, Any]:
        return {name: _encoded(self._space.dimensions[name], value) for name, value in point.items()}

    def _decoded(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _decoded(self._space.dimensions[name], value) for name, value in params.items()}


def _encoded(dimension: Dimension, value: Any) -> Any:
    if isinstance(dimension, Choices):
        return dimension.index_of(value)
    if dimension.step:
        return dimension.steps_to(value)
    return int(value) if dimension.is_integer else float(value)


def _decoded(dimension: Dimension, value: Any) -> Any:
    if isinstance(dimension, Choices):
        return dimension.options[value]
    if dimension.step:
        return dimension.value_after(value)
    # A step away from the edge, Optuna may be so by a rounding error.
    return dimension.flag_value(min(max(value, dimension.low), dimension.high))


def _all_points(space: Space) -> Iterator[dict[str, Any]]:
    names = list(space.dimensions)
    values: Iterable[Iterable[Any]] = (_values(space.dimensions[name]) for name in names)
    return (dict(zip(names, each, strict=True)) for each in itertools.product(*values))


def _values(dimension: Range | Choices) -> Iterator[Any]:
    return dimension.values()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Optuna's warnings, which are about its own interface, from the user's log."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _optuna(kind: str) -> ModuleType:
    with _quiet():
        try:
            import optuna
        except (ImportError, OSError) as e:
            raise EngineMissing(f"Optuna is not installed ({e}); install it with {INSTALL}") from e
        if kind == "gp":
            try:
                import scipy  # type: ignore[import-untyped]  # noqa: F401
                import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
            except (ImportError, OSError) as e:
                raise EngineMissing(f"it needs PyTorch and SciPy ({e}): pip install torch scipy") from e
    major = int(optuna.__version__.partition(".")[0])
    if major < 5:
        raise EngineMissing(f"Optuna {optuna.__version__} is installed, and 5 or later is needed: {INSTALL}")
    optuna.logging.disable_default_handler()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found: ModuleType = optuna
    return found
