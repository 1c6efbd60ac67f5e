"""The process that starts one run: Guild's own `guild run --start RUN_DIR`, under a guard.

`runner` runs this file, `python starter.py GATE CLAIM RUN_DIR OPTIONS`, or the forkserver forks it. The process

- waits at the gate until its identity is in the claim, so that no scheduler can consider it dead while it is alive;
- marks the claim as started immediately before Guild starts the operation's process, and not earlier;
- on SIGTERM gives up if the claim is not marked yet, and otherwise ends the operation and all of its descendants;
- ends processes that the run leaves behind, whatever session or process group they are in;
- writes the cause beside the claim if the run was cut short.

The operation's process is Guild's child, started as Guild starts it.
"""

import sys

if __name__ == "__main__":
    # Python puts the folder of this file first on the path, where our modules would shadow the user's.
    if sys.path[0] == __file__.rpartition("/")[0]:
        sys.path.pop(0)

import os
import pathlib
import signal
import subprocess
import threading
from typing import Any

from guild_dask.host import environment, signals
from guild_dask.worker.job import NOT_STARTED
from guild_dask.worker.operation import Operation
from guild_dask.worker.options import StarterOptions, options_for_text


def popen_for(operation: Operation) -> type:
    """Returns a Popen class that recognizes the operation's process among those that Guild starts."""

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        is_operation = False

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            environ = kwargs.get("env") or {}
            if environ.get("RUN_ID") == operation.run_id and not operation.is_starting:
                operation.begin()
                self.is_operation = True
            with operation.spawning(self, self.is_operation):
                super().__init__(*args, **kwargs)
            if self.is_operation and operation.is_stopping:
                operation.stop_soon()  # the signal came before there was a process to end

        def wait(self, timeout: float | None = None) -> int:
            return self._noted(super().wait(timeout))

        def poll(self) -> int | None:
            status = super().poll()
            return None if status is None else self._noted(status)

        def _noted(self, exit_status: int) -> int:
            if self.is_operation:
                operation.end(exit_status)
                if operation.is_cut_off:
                    threading.Event().wait()  # this process is about to be killed; Guild must not record an end
            return exit_status

    return Popen


def start_guild(run_dir: str) -> int:
    """Does what `guild run --start RUN_DIR --yes` does, in this process, and returns its exit code."""
    from guild import main_bootstrap

    sys.argv = ["guild", "run", "--start", run_dir, "--yes"]
    try:
        main_bootstrap.main()
    except SystemExit as e:
        # Guild exits with minus the signal that killed the operation. A process's exit code has eight bits.
        return e.code & 0xFF if isinstance(e.code, int) else int(e.code is not None)
    return 0


def run(gate: int, claim: pathlib.Path, run_dir: str, options: StarterOptions) -> int:
    """Waits at the gate, starts the run, waits for its end, and returns Guild's exit code or NOT_STARTED."""
    operation = Operation(run_dir, claim, options)
    signals.set_handler((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), operation.on_signal)
    if not os.read(gate, 1):
        return NOT_STARTED
    from guild_dask.home import claims, snapshot
    from guild_dask.host import processes

    operation.identity = processes.identity(os.getpid())
    operation.guard.watch(operation.identity)
    if options.has_lifeline:
        operation.guard.hold(gate)
    else:
        os.close(gate)
    if options.attempt > 1:
        os.environ["GUILD_DASK_ATTEMPT"] = str(options.attempt)
    os.environ.update(environment.thread_variables(os.environ, options.threads))
    os.environ.update(environment.device_variables(os.environ, options.devices))
    try:
        snapshot.save(run_dir, claim.with_suffix(claims.SAVED))
    except OSError as e:
        sys.stderr.write(f"cannot save the run's records: {e}\n")
        return NOT_STARTED
    processes.adopt_orphans()
    signal.signal(signal.SIGCHLD, operation.on_child)
    subprocess.Popen = popen_for(operation)  # type: ignore[assignment, misc]
    try:
        code = start_guild(run_dir)
    except OSError as e:
        sys.stderr.write(f"Guild could not read or write a file: {e}\n")
        code = 1 if operation.is_starting else NOT_STARTED
    except Exception as e:  # noqa: BLE001  # any error ends the run, and is reported in one line
        sys.stderr.write(f"Guild failed: {type(e).__name__}: {e}\n")
        code = 1
    operation.end_what_is_left()
    operation.close()
    return code


if __name__ == "__main__":
    try:
        code = run(int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], options_for_text(sys.argv[4]))
    except SystemExit as e:
        code = int(e.code or 0)
    sys.exit(code)
