"""Documents that tell a user's story on a real system."""

import pathlib

from tests.support.documents import check_in_new_home
from tests.systems.slurm import Slurm

_HERE = pathlib.Path(__file__).parent


def test_slurm(slurm: Slurm) -> None:
    address, configuration = slurm.network.address, slurm.variables["SLURM_CONF"]
    check_in_new_home(_HERE / "slurm.md", LOGIN_NODE=address, SLURM_CONF=configuration)
