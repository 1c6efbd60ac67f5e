"""What is known of the runs that others depend on, so that only the rest has to be looked up. Pure."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from guild_dask.plan.dependencies import Found, RunStatus


@dataclass
class DependencyLookup:
    """The runs that waiting runs name, by their ids or the beginnings of these, as they were last found."""

    # What a reference stands for, where it is clear; rebuilt by remember().
    _meant: dict[str, str] = field(default_factory=dict)
    # References to runs that completed. That is final: they are not looked up again.
    _completed: dict[str, Found] = field(default_factory=dict)

    def known(self, references: Iterable[str], active: Container[str], staged: Container[str]) -> dict[str, Found]:
        """Returns what is known without reading the runs directory: completed, active and staged runs."""
        known: dict[str, Found] = {}
        for reference in references:
            run_id = self._meant.get(reference, reference)
            if reference in self._completed:
                known[reference] = self._completed[reference]
            elif run_id in active:
                known[reference] = Found(RunStatus.GOES_ON, (run_id,))
            elif run_id in staged:
                known[reference] = Found(RunStatus.STAGED, (run_id,))
        return known

    def remember(self, found: Mapping[str, Found]) -> None:
        """Remembers what all references stand for now."""
        self._meant = {reference: one.run_ids[0] for reference, one in found.items() if len(one.run_ids) == 1}
        self._completed = {reference: one for reference, one in found.items() if one.status is RunStatus.COMPLETED}

    def means(self, run_id: str) -> bool:
        """Returns whether a run is one that others depend on."""
        return run_id in self._meant.values()
