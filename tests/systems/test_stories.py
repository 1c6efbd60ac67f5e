"""Documents that tell a user's story on a real system."""

import pathlib

import pytest

from tests.support.documents import check_in_new_home
from tests.systems.slurm import Slurm

_HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize("name", ["slurm", "slurm-search"])
def test_slurm(slurm: Slurm, name: str) -> None:
    address, configuration = slurm.network.address, slurm.variables["SLURM_CONF"]
    check_in_new_home(_HERE / f"{name}.md", LOGIN_NODE=address, SLURM_CONF=configuration)
