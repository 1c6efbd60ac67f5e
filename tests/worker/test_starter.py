"""What a starter does with the process of an operation."""

import os
import pathlib
import subprocess
import sys
import threading

import psutil
import pytest

from guild_dask.home import claims, layout
from guild_dask.home.claims import Claim
from guild_dask.host import processes
from guild_dask.worker.operation import Operation
from guild_dask.worker.options import StarterOptions, options_for_text
from guild_dask.worker.starter import popen_for
from tests.home.test_run_directory import make_run


class _Operation(Operation):
    """Looks at the operation's process when its end is noted."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(str(folder), folder / "aaa.claimed", StarterOptions())
        self.pid = 0
        self.seen: list[tuple[int, str]] = []

    def begin(self) -> None:
        """Needs no claim here."""

    def end(self, exit_status: int) -> None:
        if not self.seen:
            self.seen.append((exit_status, psutil.Process(self.pid).status()))


@pytest.mark.parametrize("is_polled", [False, True])
@pytest.mark.parametrize(
    ("program", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 15)", -15)]
)
def test_end_is_noted_before_the_process_is_reaped(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, program: str, code: int, is_polled: bool
) -> None:
    # `guild stop` waits until the process is reaped, and only until then can be seen that the user stopped it.
    monkeypatch.setattr("guild.op_util.threading", threading)  # which the starter changes, in its own process
    operation = _Operation(tmp_path)
    process = popen_for(operation)(
        [sys.executable, "-c", program], env={"RUN_ID": tmp_path.name}, stdin=subprocess.PIPE
    )
    operation.pid = process.pid
    if is_polled:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.poll() == code
    assert process.wait() == code
    process.stdin.close()
    assert operation.seen == [(code, psutil.STATUS_ZOMBIE)]


def test_process_of_an_earlier_attempt_is_forgotten_before_the_next_one_begins(tmp_path: pathlib.Path) -> None:
    # Guild writes the pid of the new process only after its start. If everything but that process is killed before,
    # the pid of an earlier one, left by `kill -9` of Guild, would pass for it: the run would be started a second time.
    run_dir, me = tmp_path / "runs" / "aaa", processes.identity(os.getpid())
    assert me
    make_run(run_dir)
    lock = run_dir / ".guild" / "LOCK"
    lock.write_text("999999")
    folder = layout.claims_folder(str(tmp_path))
    claims.write(folder, Claim("aaa", "scheduler", me, me))
    operation = Operation(str(run_dir), claims.path(folder, "aaa"), StarterOptions())
    operation.identity = me
    operation.begin()
    operation.close()
    found = claims.present(folder, "aaa")
    assert found
    assert found.is_started
    assert not lock.exists()


def test_options_are_read_as_they_were_written() -> None:
    options = StarterOptions(grace=5, devices="0,1", preload=("numpy", "a.b"), run_info="host: a", has_lifeline=True)
    assert options_for_text(options.as_text()) == options
    # A forkserver of another version may send what this one does not know.
    assert options_for_text('{"attempt": 2, "new": 1}') == StarterOptions(attempt=2)
