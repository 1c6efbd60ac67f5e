"""What a search has found so far: counts, the best trials, the time left, and what charts of it show. Pure."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guild_dask.home.trials import Trial, TrialState, completed_costs
from guild_dask.monitor.flag_columns import text_for_value
from guild_dask.plan.objectives import Objective, best_of

# The most trials that a chart draws: the best and the latest. The most flags that have an axis, values on the axis of
# choices, and points of a curve.
MOST_DRAWN = 300
_MOST_AXES = 12
_MOST_CHOICES = 20
_MOST_POINTS = 64

# States in the order in which they are counted. Trials that wait, and those that are not staged yet, are in flight.
COUNTED = (TrialState.COMPLETED, TrialState.PRUNED, TrialState.FAILED, TrialState.STOPPED)
RUNNING, WAITING = "running", "waiting"


def counts(trials: Sequence[Trial]) -> dict[str, int]:
    """Returns how many trials ended how, run and wait; deleted trials do not count."""
    found = {state.value: sum(trial.state is state for trial in trials) for state in COUNTED}
    found[RUNNING] = sum(trial.state is TrialState.RUNNING for trial in trials)
    found[WAITING] = sum(trial.is_in_flight for trial in trials) - found[RUNNING]
    return found


def best(trials: Sequence[Trial], objectives: Sequence[Objective]) -> list[Trial]:
    """Returns completed trials, the best first; with several objectives, those that no other trial dominates."""
    found = {trial.id: (trial, costs) for trial in trials if (costs := completed_costs(trial, objectives))}
    names = list(found)
    if len(objectives) > 1:
        names = best_of({name: costs for name, (_, costs) in found.items()})
    return [found[name][0] for name in sorted(names, key=lambda name: (found[name][1], found[name][0].number))]


def seconds_left(trials: Sequence[Trial], max_trials: int, now: float, ends_at: float | None = None) -> float | None:
    """Returns how long a search goes on, if trials take as long as earlier ones; None if that is unknown.

    As many trials run at the same time as are in flight now. `ends_at` is when its time is over.
    """
    took = [
        trial.ended - trial.started
        for trial in trials
        if trial.state in (TrialState.COMPLETED, TrialState.PRUNED) and trial.started and trial.ended
    ]
    in_flight = [trial for trial in trials if trial.is_in_flight]
    counted = [trial for trial in trials if trial.state is not TrialState.DELETED]
    if not took or not in_flight:
        return None
    usual = max(0.0, statistics.fmean(took))
    begun = sum(max(0.0, usual - (now - (trial.started or now))) for trial in in_flight)
    work = begun + usual * max(0, max_trials - len(counted))
    left = work / len(in_flight)
    if ends_at is None:
        return left
    return min(left, max(0.0, ends_at - now) + usual)


def flags_text(point: Mapping[str, Any]) -> str:
    """Returns the flags of a trial: `layers=2 lr=0.1`."""
    return " ".join(f"{name}={short_value(value)}" for name, value in point.items())


def short_value(value: Any) -> str:
    """Returns a flag's value as text; a number in at most five digits, since a search chooses many digits."""
    return f"{value:.5g}" if isinstance(value, float) else text_for_value(value)


# Charts


@dataclass(frozen=True)
class Axis:
    """An axis of parallel coordinates: its name, and where marks with a text are, from 0 to 1."""

    name: str
    marks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class DrawnTrial:
    """A trial in charts. Values that cannot be drawn are None."""

    run: str
    number: int
    state: str
    text: str  # its values and flags
    ended: float | None
    values: tuple[float | None, ...]  # of the objectives
    places: tuple[float | None, ...]  # on each axis, from 0 to 1
    goodness: float  # from 0, the worst, to 1, the best; of those that have a value
    is_best: bool
    curve: tuple[tuple[int, float], ...]  # of the first objective: step and value


@dataclass(frozen=True)
class Drawing:
    """All that the charts of a search show."""

    objectives: tuple[str, ...]
    maximized: tuple[bool, ...]
    axes: tuple[Axis, ...]
    trials: tuple[DrawnTrial, ...]  # by number
    best_so_far: tuple[tuple[float, float], ...]  # of the first objective: when, and the best value from then on
    left_out: int = 0  # trials that are not drawn


def drawing_for(trials: Sequence[Trial], objectives: Sequence[Objective], space: Mapping[str, Any]) -> Drawing:
    """Returns what charts show; `space` has the flags as the user typed them."""
    known = [trial for trial in trials if trial.state is not TrialState.DELETED]
    ordered = best(known, objectives)
    drawn = _chosen(known, ordered)
    names = list(dict.fromkeys(name for trial in drawn for name in trial.point))[:_MOST_AXES]
    scales = [_scale(name, [trial.point.get(name) for trial in drawn], space.get(name)) for name in names]
    scales += [_scale(str(each), [_value(trial, i) for trial in drawn], None) for i, each in enumerate(objectives)]
    ranks = _goodness(drawn, objectives)
    leaders = {trial.id for trial in (ordered if len(objectives) > 1 else ordered[:1])}
    frame = _Frame(objectives, names, scales, ranks, leaders)
    return Drawing(
        tuple(map(str, objectives)),
        tuple(each.is_maximized for each in objectives),
        tuple(scale.axis for scale in scales),
        tuple(map(frame.drawn, drawn)),
        tuple(_best_so_far(known, objectives[0])),
        len(known) - len(drawn),
    )


def _chosen(trials: Sequence[Trial], ordered: Sequence[Trial]) -> list[Trial]:
    """Returns the trials to draw, in the order of their numbers: a part of them are the best, the others the latest."""
    if len(trials) <= MOST_DRAWN:
        return list(trials)
    kept = {trial.id for trial in ordered[: MOST_DRAWN // 3]}
    for trial in reversed(trials):
        if len(kept) >= MOST_DRAWN:
            break
        kept.add(trial.id)
    return [trial for trial in trials if trial.id in kept]


def _value(trial: Trial, index: int) -> float | None:
    """Returns a trial's value of an objective, if it can be drawn."""
    values = trial.values
    return values[index] if values is not None and math.isfinite(values[index]) else None


def _goodness(trials: Sequence[Trial], objectives: Sequence[Objective]) -> dict[str, float]:
    """Returns the rank of each trial with a value of the first objective, from 0 to 1: values may be far apart."""
    found = [(trial.id, value) for trial in trials if (value := _value(trial, 0)) is not None]
    ordered = sorted(found, key=lambda each: objectives[0].cost_of(each[1]), reverse=True)
    last = max(1, len(ordered) - 1)
    return {name: rank / last if len(ordered) > 1 else 1.0 for rank, (name, _) in enumerate(ordered)}


@dataclass(frozen=True)
class _Frame:
    """What all trials of a drawing have in common."""

    objectives: Sequence[Objective]
    names: Sequence[str]  # the flags that have an axis
    scales: Sequence["_Scale"]  # of these flags, and of the objectives
    ranks: Mapping[str, float]
    leaders: Collection[str]

    def drawn(self, trial: Trial) -> DrawnTrial:
        values = tuple(_value(trial, index) for index in range(len(self.objectives)))
        given = [*(trial.point.get(name) for name in self.names), *values]
        pairs = zip(self.objectives, values, strict=True)
        shown = " ".join(f"{each}={value:.5g}" for each, value in pairs if value is not None)
        return DrawnTrial(
            trial.id,
            trial.number,
            trial.state.value,
            f"{shown}; {flags_text(trial.point)}" if shown else flags_text(trial.point),
            trial.ended,
            values,
            tuple(scale.position(value) for scale, value in zip(self.scales, given, strict=True)),
            round(self.ranks.get(trial.id, 0.0), 4),
            trial.id in self.leaders,
            tuple(_thinned(trial.curves[0])) if trial.curves else (),
        )


def _thinned(curve: Mapping[int, float]) -> list[tuple[int, float]]:
    """Returns a curve in the order of steps, with few points: the last one is among them."""
    points = [(step, curve[step]) for step in sorted(curve) if math.isfinite(curve[step])]
    stride = max(1, math.ceil(len(points) / _MOST_POINTS))
    return points[::-stride][::-1]


def _best_so_far(trials: Sequence[Trial], objective: Objective) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    ended = [
        (trial.ended, value)
        for trial in trials
        if trial.state is TrialState.COMPLETED and trial.ended and (value := _value(trial, 0)) is not None
    ]
    for at, value in sorted(ended):
        if not found or objective.cost_of(value) < objective.cost_of(found[-1][1]):
            found.append((at, value))
    return found


@dataclass(frozen=True)
class _Scale:
    """Where values are on an axis."""

    axis: Axis
    positions: Mapping[str, float] | None = None  # of choices
    low: float = 0.0
    high: float = 1.0
    is_log: bool = False

    def position(self, value: Any) -> float | None:
        """Returns where a value is, from 0 to 1; None if it is not on the axis."""
        if self.positions is not None:
            return self.positions.get(short_value(value)) if value is not None else None
        if not _is_number(value) or (self.is_log and value <= 0):
            return None
        low, high, at = ((math.log(each) if self.is_log else each) for each in (self.low, self.high, value))
        return round((at - low) / (high - low), 4) if high > low else 0.5


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _scale(name: str, values: Sequence[Any], typed: Any) -> _Scale:
    """Returns the scale for the values of a flag; what the user typed says whether it is logarithmic, or of choices."""
    present = [value for value in values if value is not None]
    if isinstance(typed, list) or not all(map(_is_number, present)):
        return _choices(name, present, typed if isinstance(typed, list) else [])
    is_log = isinstance(typed, str) and typed.strip().startswith("log") and all(value > 0 for value in present)
    if not present:
        return _Scale(Axis(name, ()))
    low, high = float(min(present)), float(max(present))
    middle = math.sqrt(low * high) if is_log else (low + high) / 2
    is_whole = all(isinstance(value, int) for value in present)
    marks = [(0.0, low), (0.5, middle), (1.0, high)] if high > low else [(0.5, low)]
    shown = [(at, _mark(value, is_whole)) for at, value in marks if not (is_whole and value != int(value))]
    return _Scale(Axis(name, tuple(shown)), None, low, high, is_log)


def _mark(value: float, is_whole: bool) -> str:
    return f"{value:.0f}" if is_whole and abs(value) < 1e6 else f"{value:.3g}"


def _choices(name: str, values: Sequence[Any], typed: Sequence[Any]) -> _Scale:
    """Returns the scale of choices in the order in which the user typed them."""
    texts = list(dict.fromkeys(short_value(value) for value in (*typed, *values)))[:_MOST_CHOICES]
    last = max(1, len(texts) - 1)
    positions = {text: (round(at / last, 4) if len(texts) > 1 else 0.5) for at, text in enumerate(texts)}
    return _Scale(Axis(name, tuple((at, text) for text, at in positions.items())), positions)
