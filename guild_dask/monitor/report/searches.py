"""The searches whose trials a scheduler has run, read for its report."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from guild_dask.home import layout, search_journal, trials
from guild_dask.home.trials import RecordedSearch, Trial, TrialReader
from guild_dask.monitor import search_results
from guild_dask.monitor.importances import CommandFor, Importances, PendingImportances
from guild_dask.monitor.search_results import Drawing

# The most searches of a report, and the seconds for reading one.
_MOST_SEARCHES = 3
_SECONDS = 20.0

# Seconds that a scheduler which is about to end waits for the importances of all searches.
PATIENCE = 10.0


@dataclass(frozen=True)
class ReportedSearch:
    """A search with all that a report shows of it."""

    search: RecordedSearch
    counts: dict[str, int]
    best: list[Trial]
    drawing: Drawing
    pending: Callable[[], Importances]  # waits for their evaluation; see importances
    is_complete: bool = True  # all its trials were read

    @functools.cached_property
    def importances(self) -> Importances:
        """Returns the importances. They are evaluated while the rest of the report is made, so ask for them last."""
        return self.pending()

    def as_data(self) -> dict[str, Any]:
        """Returns the search for a script, with all that its charts show."""
        return {
            "batch": self.search.batch,
            "optimizer": self.search.optimizer,
            "operation": self.search.operation,
            "counts": self.counts,
            "best": [each.id for each in self.best],
            "drawing": asdict(self.drawing),
            "importances": asdict(self.importances),
        }


def reported_searches(
    run_dir: str, run_ids: Iterable[str], evaluation: CommandFor, patience: float
) -> list[ReportedSearch]:
    """Returns the searches of a scheduler's runs, the scheduler's own first; those that cannot be read are left out.

    `evaluation` is the command that evaluates importances.
    """
    runs_dir = layout.runs_dir_of(run_dir)
    own = [layout.run_id(run_dir)] if search_journal.exists(run_dir) else []
    others = (trials.batch_of(layout.run_in(runs_dir, run_id)) for run_id in run_ids)
    known = dict.fromkeys(batch for batch in (*own, *others) if batch)
    batches = [batch for batch in known if search_journal.exists(layout.run_in(runs_dir, batch))][:_MOST_SEARCHES]
    found = []
    for batch in batches:
        try:
            found.append(_reported(layout.home_of_runs(runs_dir), batch, evaluation, patience / len(batches)))
        except (OSError, ValueError):
            continue  # it is being deleted, or its records cannot be read
    return found


def _reported(home: str, batch: str, evaluation: CommandFor, patience: float) -> ReportedSearch:
    search = trials.search(home, batch)
    reader = TrialReader(home, batch, search.objectives, with_curves=True, is_view=True)
    found, is_complete = reader.read_some(search.log, _SECONDS)
    counts = search_results.counts(found)
    return ReportedSearch(
        search,
        counts,
        search_results.best(found, search.objectives),
        search_results.drawing_for(found, search.objectives, search.space),
        _importances_of(evaluation(home, batch), patience)
        if counts["completed"]
        else lambda: Importances(why="no trial completed"),
        is_complete,
    )


def _importances_of(command: Sequence[str], patience: float) -> Callable[[], Importances]:
    pending = PendingImportances(command)
    return lambda: pending.result(patience)
