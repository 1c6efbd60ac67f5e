"""Which earlier runs a search learns from."""

import pathlib

from guild_dask.home import layout
from guild_dask.plan.objectives import Objective
from guild_dask.scheduler.search.prior import observations
from guild_dask.scheduler.search.space import space_for_flags
from tests.support.searches import BATCH, GivenTrial, a_search, trial_id


def test_runs_of_an_operation_of_that_name_in_another_project_are_not_learned_from(tmp_path: pathlib.Path) -> None:
    a_search(tmp_path, [GivenTrial({"x": 1}, (1.0,)), GivenTrial({"x": 2}, (2.0,))], {"x": "[1:9]"})
    opref = tmp_path / "runs" / trial_id(2) / ".guild" / "opref"
    opref.write_text(opref.read_text().replace("guildfile:/x", "guildfile:/other"))
    proto = layout.prototype(layout.run_dir(str(tmp_path), BATCH))
    found = observations(str(tmp_path), proto, space_for_flags({"x": "[1:9]"}), (Objective("loss"),), ())
    assert [each.point for each in found] == [{"x": 1}]
