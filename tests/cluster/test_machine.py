"""The CPUs and the memory that this process may use."""

import os
import pathlib
import subprocess
import sys

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guild_dask.cluster import machine
from guild_dask.host import environment
from guild_dask.plan.resources import Request, definition_for_spec
from guild_dask.plan.units import amount_for_text


def test_cpus_are_those_that_this_process_may_use() -> None:
    assert 1 <= machine.cpus() <= (os.cpu_count() or 1)
    if sys.platform == "linux":
        one = f"import os; os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}])"
        code = f"{one}; from guild_dask.cluster import machine; print(machine.cpus())"
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert float(shown) == 1


def test_memory_is_at_most_that_of_the_machine_and_its_text_is_exact() -> None:
    found = machine.memory()
    assert 0 < found <= psutil.virtual_memory().total
    assert amount_for_text(found.text) == pytest.approx(found)


def test_memory_is_at_most_that_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "1000")
    assert machine.memory() == pytest.approx(1.0e9)
    for text in ("", "much", "0", "-1"):
        monkeypatch.setenv("SLURM_MEM_PER_NODE", text)
        assert machine.memory() > 0


@pytest.fixture
def group(tmp_path: pathlib.Path) -> machine.Groups:
    """The cgroup of this process, as cgroup v2 would show it."""
    return lambda controller: tmp_path if controller == "" else tmp_path / "none"


def test_container_may_have_less(group: machine.Groups) -> None:
    (group("") / "memory.max").write_text("2000000000\n")
    (group("") / "cpu.max").write_text("150000 100000\n")
    assert machine.memory(group) == pytest.approx(2e9)
    assert machine.cpus(group) == min(2, len(os.sched_getaffinity(0)))


def test_container_without_limits_has_all(group: machine.Groups) -> None:
    before = machine.amounts(["cpu", "mem"], group)
    (group("") / "memory.max").write_text("max\n")
    (group("") / "cpu.max").write_text("max 100000\n")
    assert machine.amounts(["cpu", "mem"], group) == before


def test_only_named_resources_are_measured() -> None:
    assert machine.amounts([]) == {}
    assert set(machine.amounts(["cpu"])) == {"cpu"}


# Definitions with `auto`


def test_cpu_and_memory_may_be_automatic() -> None:
    assert definition_for_spec("cpu=auto gpu=2 mem=AUTO") == Request({"gpu": 2}, (), ("cpu", "mem"))


def test_other_resources_may_not_be_automatic() -> None:
    (problem,) = definition_for_spec("gpu=auto").unreadable
    assert str(problem).endswith("cpu and mem can be auto; for devices there is the flag gpus=auto")


@given(st.text() | st.text("cpumeato= ='1"))
def test_no_definition_raises(spec: str) -> None:
    request = definition_for_spec(spec)
    assert set(request.automatic) <= {"cpu", "mem"}
    assert not set(request.automatic) & set(request.amounts)


# Threads


def test_thread_variables_are_set_unless_the_user_has_set_them() -> None:
    variables = environment.thread_variables({}, 4)
    assert variables["OMP_NUM_THREADS"] == variables["MKL_NUM_THREADS"] == "4"
    assert "MKL_NUM_THREADS" not in environment.thread_variables({"MKL_NUM_THREADS": "2"}, 4)
    # All other libraries follow this variable.
    assert environment.thread_variables({"OMP_NUM_THREADS": "2"}, 4) == {}
    assert environment.thread_variables({}, 0) == {}


def test_limit_on_open_files_is_compared_with_the_slots() -> None:
    assert machine.warning_about_files(60, 1024) == ""
    warning = machine.warning_about_files(60, 128)
    assert warning.startswith("A limit of 128 open files is too low for 60 slots: about 14 runs may start at a time")
    assert warning.endswith("'ulimit -n 400' raises the limit")
    assert machine.warning_about_files(60, 400) == ""
    assert "about 1 runs" in machine.warning_about_files(2, 10)
