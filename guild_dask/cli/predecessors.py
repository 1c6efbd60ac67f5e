"""The staged runs that a run depends on, without a scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from guild_dask.home import layout, lookup, run_directory
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.run_directory import BrokenRun
from guild_dask.plan import dependencies
from guild_dask.plan.dependencies import Found, Links, RunStatus
from guild_dask.plan.reasons import Hold


@dataclass(frozen=True)
class Predecessors:
    """What the staged runs that a run depends on request, nearest first, and why the run is held, if it is."""

    requests: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    hold: Hold | None = None


def predecessors_of(home: str, run_id: str) -> Predecessors:
    """Returns the staged runs that a run depends on, directly or through others, as far as they can be read."""
    runs_dir, claims_folder = layout.runs_dir(home), layout.claims_folder(home)
    requests: dict[str, Mapping[str, float]] = {}
    links: dict[str, Links] = {}
    found: dict[str, Found] = {}
    ahead = [run_id]
    for each in ahead:
        try:
            run = run_directory.read_staged(layout.run_in(runs_dir, each))
            link = Links(run.requirements.after, run.needs)
            found |= lookup.found(runs_dir, claims_folder, (), link.references)
        except (BrokenRun, OSError, HomeUnavailable):
            continue
        requests[each], links[each] = run.requirements.amounts, link
        staged = (found[name].run_ids[0] for name in links[each].references if found[name].status is RunStatus.STAGED)
        ahead += (other for other in dict.fromkeys(staged) if other not in ahead)
    requests.pop(run_id, None)
    return Predecessors(requests, dependencies.decide(links, found).holds.get(run_id))
