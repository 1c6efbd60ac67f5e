"""The runs that others come after: what has become of each, looked up only where that is not known already."""

from collections.abc import Callable, Container, Iterable, Mapping

from guild_dask.plan.dependencies import Fate, Found

Find = Callable[[Iterable[str]], Mapping[str, Found]]


class Awaited:
    """What a scheduler knows of them, and what it finds out with `find`, which reads the runs directory."""

    def __init__(self, find: Find, in_flight: Container[str]) -> None:
        self._find = find
        self._in_flight = in_flight
        self._meant: dict[str, str] = {}  # what was written down -> the run's id, once that is clear
        self._ids: frozenset[str] = frozenset()  # of those
        self._completed: dict[str, Found] = {}  # for good: it need not have completed twice

    def found(self, references: Iterable[str], staged: Container[str]) -> dict[str, Found]:
        """Returns what each reference leads to; `staged` are the runs that are known to wait."""
        known: dict[str, Found] = {}
        unknown: list[str] = []
        for reference in references:
            run_id = self._meant.get(reference, reference)
            if reference in self._completed:
                known[reference] = self._completed[reference]
            elif run_id in self._in_flight:
                known[reference] = Found(Fate.GOES_ON, (run_id,))
            elif run_id in staged:
                known[reference] = Found(Fate.STAGED, (run_id,))
            else:
                unknown.append(reference)
        known.update(self._find(unknown) if unknown else {})
        self._meant = {reference: one.run_ids[0] for reference, one in known.items() if len(one.run_ids) == 1}
        self._ids = frozenset(self._meant.values())
        self._completed = {reference: one for reference, one in known.items() if one.fate is Fate.COMPLETED}
        return known

    def is_meant(self, run_id: str) -> bool:
        """Tells whether somebody comes after that run."""
        return run_id in self._ids
