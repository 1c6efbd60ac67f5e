"""A search as a study of Optuna's, for its evaluators and its dashboard. Optuna is loaded only here and in the engine.

`python -m guild_dask.scheduler.search.study HOME BATCH` prints the importances of the flags as JSON. It is a
process of its own: Optuna takes a second and some memory, which a scheduler with an open page must not pay.
"""

import json
import math
import sys
import warnings
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from guild_dask.home import trials
from guild_dask.home.trials import RecordedSearch, Trial, TrialState
from guild_dask.scheduler.search.engine import Engine, EngineMissing
from guild_dask.scheduler.search.space import BadSpace, Choices, Space, space_for_flags

# With fewer completed trials, importances say nothing.
LEAST_COMPLETED = 8

# Kinds of choices that Optuna can store as they are.
_PLAIN = (bool, int, float, str, type(None))

_ATTRIBUTE = "guild_run"


class CannotExport(Exception):
    """A search cannot be made a study; the text is for the user."""


def write_journal(search: RecordedSearch, found: Sequence[Trial], path: str) -> int:
    """Writes a file of Optuna's JournalStorage, which must not exist; returns the number of trials.

    Raises CannotExport, EngineMissing or OSError.
    """
    optuna = _optuna(search)
    space = _space(search)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        storage = JournalStorage(JournalFileBackend(path))
        study = optuna.create_study(
            storage=storage,
            study_name=f"{search.operation} {search.batch[:8]}",
            directions=[each.direction for each in search.objectives],
        )
        study.set_metric_names([str(each) for each in search.objectives])
        study.set_user_attr("guild_batch", search.batch)
        study.set_user_attr("optimizer", search.optimizer)
        exported = [each for each in (_frozen(optuna, space, trial, search) for trial in found) if each is not None]
        study.add_trials(exported)
    return len(exported)


def importances(search: RecordedSearch, found: Sequence[Trial]) -> dict[str, float]:
    """Returns how much each flag matters for the first objective, the most important first; they sum up to 1.

    Raises CannotExport if there are too few completed trials, or EngineMissing.
    """
    optuna = _optuna(search)
    space = _space(search)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(direction=search.objectives[0].direction)
        told = [_frozen(optuna, space, trial, search) for trial in found if trial.state is TrialState.COMPLETED]
        one = [_with_one_value(optuna, each) for each in told if each and each.values]
        if len(one) < LEAST_COMPLETED:
            raise CannotExport(f"they need {LEAST_COMPLETED} completed trials, and there are {len(one)}")
        study.add_trials(one)
        return {name: float(each) for name, each in optuna.importance.get_param_importances(study).items()}


def _optuna(search: RecordedSearch) -> Any:
    """Loads Optuna as the engine does; raises EngineMissing."""
    Engine("random", _space(search), ["minimize"], 0)
    import optuna

    return optuna


def _space(search: RecordedSearch) -> Space:
    try:
        return space_for_flags(search.space)
    except BadSpace as e:
        raise CannotExport(str(e)) from e


def _with_one_value(optuna: Any, trial: Any) -> Any:
    return optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, value=trial.values[0])


_STATES = {
    TrialState.COMPLETED: "COMPLETE",
    TrialState.PRUNED: "PRUNED",
    TrialState.FAILED: "FAIL",
    TrialState.STOPPED: "FAIL",
    TrialState.RUNNING: "RUNNING",
}


def _frozen(optuna: Any, space: Space, trial: Trial, search: RecordedSearch) -> Any:
    """Returns a trial as Optuna has it; None for one that Optuna has no word for: it waits, or was deleted.

    A completed trial without a finite value is a failed one there.
    """
    if trial.state not in _STATES or not space.contains(space.flags(trial.point)):
        return None
    state = _STATES[trial.state]
    values = trial.values
    if state == "COMPLETE" and (values is None or any(map(math.isnan, values))):
        state = "FAIL"
    params, distributions = _params(optuna, space, trial)
    is_one = len(search.objectives) == 1
    curve = trial.curves[0] if trial.curves and is_one else {}
    began = datetime.fromtimestamp(trial.started or trial.proposed)
    made = optuna.trial.create_trial(
        state=optuna.trial.TrialState[state],
        params=params,
        distributions=distributions,
        values=list(values) if state == "COMPLETE" and values else None,
        intermediate_values={step: curve[step] for step in sorted(curve)},
        user_attrs={_ATTRIBUTE: trial.id, "state": trial.state.value},
    )
    made.datetime_start = began
    if state != "RUNNING":
        made.datetime_complete = datetime.fromtimestamp(trial.ended) if trial.ended else began
    return made


def _params(optuna: Any, space: Space, trial: Trial) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a point and its distributions: choices as they are, where Optuna can tell them apart, else as texts."""
    params: dict[str, Any] = {}
    distributions: dict[str, Any] = {}
    kinds = optuna.distributions
    for name, each in space.dimensions.items():
        value = trial.point[name]
        if isinstance(each, Choices):
            plain = all(isinstance(option, _PLAIN) for option in each.options)
            is_clear = plain and len(set(each.options)) == len(each.options)  # 1, 1.0 and True are the same there
            options = each.options if is_clear else tuple(map(repr, each.options))
            distributions[name] = kinds.CategoricalDistribution(options)
            params[name] = options[each.index_of(value) or 0]
        elif each.is_integer:
            whole = 1 if each.step is None else int(each.step)
            distributions[name] = kinds.IntDistribution(int(each.low), int(each.high), log=each.is_log, step=whole)
            params[name] = int(value)
        else:
            distributions[name] = kinds.FloatDistribution(
                float(each.low), float(each.high), log=each.is_log, step=each.step
            )
            params[name] = float(value)
    return params, distributions


def main(home: str, batch: str) -> None:
    """Prints the importances as JSON, or why there are none."""
    try:
        search = trials.search(home, batch)
        found = trials.TrialReader(home, batch, search.objectives).read(search.log)
        data: dict[str, Any] = {"importances": importances(search, found)}
    except (CannotExport, EngineMissing, OSError, ValueError, RuntimeError) as e:
        data = {"why": str(e)}
    sys.stdout.write(json.dumps(data))


if __name__ == "__main__":
    main(*sys.argv[1:3])
