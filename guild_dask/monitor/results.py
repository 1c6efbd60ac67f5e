"""What runs achieved: which scalar measures it, whether high or low values are good, and how values are shown. Pure."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

# Words in the names of scalars whose high values are good; of all others, low ones are.
_HIGH = frozenset(
    """acc accuracy ap auc auprc auroc bleu correct dice f1 fbeta gain hits iou jaccard kappa likelihood map mcc meteor
    mrr ndcg precision psnr r2 recall return returns reward rouge score sensitivity specificity ssim throughput top1
    top5""".split()  # noqa: SIM905  # a list of words
)

# Words in the names of scalars that measure a result, the most telling first, and those of held-out data.
_MEASURES = (
    "loss",
    "accuracy",
    "acc",
    "auc",
    "f1",
    "score",
    "reward",
    "error",
    "rmse",
    "mse",
    "mae",
    "r2",
    "perplexity",
)
_HELD_OUT = frozenset(("val", "valid", "validation", "test", "eval", "dev"))


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+[0-9]*", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name).lower())


def is_high_good(name: str) -> bool:
    """Returns whether high values of a scalar are the good ones, by its name."""
    words = _words(name)
    return any(word in _HIGH for word in words) and not any(word in ("loss", "error", "err") for word in words)


def by_importance(names: Iterable[str]) -> list[str]:
    """Returns names of scalars, those that measure a result first: held-out data before training data."""
    return sorted(set(names), key=_importance)


def _importance(name: str) -> tuple[int, int, str]:
    words = _words(name)
    measure = next((rank for rank, word in enumerate(_MEASURES) if word in words), len(_MEASURES))
    is_measure = measure < len(_MEASURES) or is_high_good(name)
    return (0 if is_measure and _HELD_OUT & set(words) else 1 if is_measure else 2), measure, name


def columns_for(runs: Sequence[Collection[str]], most: int) -> tuple[list[str], list[str]]:
    """Returns the scalars to show of runs, given by the names of theirs: all of them, and those that could be left out.

    Both have the most telling ones first. Without the others, some run would have no result.
    """
    names = by_importance({name for each in runs for name in each})
    needed: list[str] = []
    for name in names:
        if any(name in each and not any(other in each for other in needed) for each in runs):
            needed.append(name)
    rest = [name for name in names if name not in needed]
    chosen = [*needed, *rest][:most]
    return [name for name in names if name in chosen], [name for name in rest if name in chosen]


def best_first(runs: Sequence[tuple[T, Mapping[str, float]]], name: str) -> list[tuple[T, Mapping[str, float]]]:
    """Returns runs with their scalars, the best value of one scalar first; runs without that scalar are the last."""
    sign = -1 if is_high_good(name) else 1

    def key(run: tuple[T, Mapping[str, float]]) -> tuple[bool, float]:
        value = run[1].get(name, math.nan)
        return math.isnan(value), 0.0 if math.isnan(value) else sign * value

    return sorted(runs, key=key)


def text_for(value: float | None) -> str:
    """Returns a value in at most five significant digits; a dash without one."""
    return "-" if value is None else f"{value:.5g}"
