"""A short form of tests/long/storm.py: three rounds on each system, with one act in each."""

from tests.long.storm import storm
from tests.long.storm_support.sites import GridEngineSite, Site, SlurmSite
from tests.systems.gridengine import GridEngine
from tests.systems.slurm import Slurm

# With this seed, a job is suspended, one is cancelled when its run has just started, and one when a worker has handed
# its run over.
SEED = "b"
ROUNDS = 3


def test_no_run_is_lost_in_a_storm_on_slurm(slurm: Slurm) -> None:
    _check(SlurmSite(slurm))


def test_no_run_is_lost_in_a_storm_on_grid_engine(gridengine: GridEngine) -> None:
    _check(GridEngineSite(gridengine))


def _check(site: Site) -> None:
    done = list(storm(site, SEED, ROUNDS, block=ROUNDS))
    assert not [text for this in done for text in this.violations]
    assert len(done) == ROUNDS
    assert any(this.done for this in done), "no act was done, so nothing was shown"
