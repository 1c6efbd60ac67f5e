"""The process that starts one run: Guild's own `guild run --start RUN_DIR`, under a guard.

`runner` runs this file, `python starter.py GATE REPORTS CLAIM RUN_DIR OPTIONS`, or the forkserver forks it. The process

- waits at the gate until its identity is in the claim, so that no scheduler can consider it dead while it is alive;
- marks the claim as started immediately before Guild starts the operation's process, and not earlier;
- on SIGTERM gives up if the claim is not marked yet, and otherwise ends the operation and all of its descendants;
- ends processes that the run leaves behind, whatever session or process group they are in;
- writes the cause beside the claim if the run was cut short;
- reports through a pipe how it went. Until the operation's process begins, whatever this host is short of means that
  the run was not started; only a refusal of Guild's own ends the run.

The operation's process is Guild's child, started as Guild starts it.
"""

import sys

if __name__ == "__main__":
    # Python puts the folder of this file first on the path, where our modules would shadow the user's.
    if sys.path[0] == __file__.rpartition("/")[0]:
        sys.path.pop(0)

import contextlib
import inspect
import os
import pathlib
import platform
import select
import signal
import subprocess
import threading
import types
from typing import TYPE_CHECKING, Any

from guild_dask.home import process_start, run_info
from guild_dask.home.errors import trouble_in
from guild_dask.home.process_start import ProcessStart
from guild_dask.host import environment, shortage, signals
from guild_dask.host.shortage import shortage_in, text_for
from guild_dask.worker.job import LOST, NOT_STARTED, Report
from guild_dask.worker.operation import SPACE, Operation
from guild_dask.worker.options import StarterOptions, options_for_text

if TYPE_CHECKING:
    from guild_dask.worker.warm_client import WarmProcess, WarmServers


# Signals with which others end this process, which handles them.
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Popen(subprocess.Popen):  # type: ignore[type-arg]
    """Recognizes the operation's process among those that Guild starts, and forks it from a warm server if one fits."""

    operation: Operation
    warm: "WarmServers | None"
    is_operation = False
    warm_process: "WarmProcess | None" = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        operation = self.operation
        environ = kwargs.get("env") or {}
        self.is_operation = environ.get("RUN_ID") == operation.run_id and not operation.is_starting
        if self.is_operation and self.warm and operation.options.warm:
            # Before the run is marked as started: until then, a stop leaves it staged.
            for each in self.warm.await_server(args[0], environ, operation.options.preload):
                _print_line(f"Not preloaded on {platform.node()}: {each}")
        with operation.beginning(self) if self.is_operation else operation.spawning(self, False):
            super().__init__(*args, **kwargs)
        if self.is_operation:
            _reserve_threads_for_guild(operation)
            run_info.add(operation.run_dir, self._start_facts())
            if operation.is_stopping:
                operation.stop_soon()  # the signal came before there was a process to end

    def _start_facts(self) -> dict[str, Any]:
        """Returns how the operation's process was started, and what that took."""
        if not self.warm_process:
            return process_start.facts_for(ProcessStart(process_start.COLD))
        missing = ", ".join(self.warm_process.not_preloaded)
        return {**process_start.facts_for(self.warm_process.start), **({"not_preloaded": missing} if missing else {})}

    def _execute_child(self, *args: Any) -> None:
        is_forked = self.is_operation and self.warm and self.operation.options.warm and self._is_forked(self.warm, args)
        if not is_forked:
            super()._execute_child(*args)  # type: ignore[misc]

    def _is_forked(self, warm: "WarmServers", args: tuple[Any, ...]) -> bool:
        """Returns whether the process was forked from a warm server; else a fresh one must be started."""
        given = inspect.signature(super()._execute_child).bind(*args).arguments  # type: ignore[misc]
        names = ("p2cread", "c2pwrite", "errwrite")
        streams = [number if given[name] == -1 else given[name] for number, name in enumerate(names)]
        environ, directory = given["env"] or os.environ, given["cwd"] or os.getcwd()
        process = warm.forked(given["args"], environ, directory, streams, self.operation.options.preload)
        if process is None or not self.operation.supervise(process):
            return False
        self.warm_process, self.pid, self._child_created = process, process.pid, True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in ends))  # type: ignore[attr-defined]
        return True

    def wait(self, timeout: float | None = None) -> int:
        if not self.warm_process:
            self._note_before_reaping(is_blocking=timeout is None)
            return self._noted(super().wait(timeout))
        status = self.warm_process.wait(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.returncode = status
        return self._noted(status)

    def poll(self) -> int | None:
        if self.warm_process and self.returncode is None:
            self.returncode = self.warm_process.wait(0)
        self._note_before_reaping(is_blocking=False)
        status = self.returncode if self.warm_process else super().poll()
        return None if status is None else self._noted(status)

    def _internal_poll(self, *args: Any, **kwargs: Any) -> Any:
        return self.returncode if self.warm_process else super()._internal_poll(*args, **kwargs)  # type: ignore[misc]

    def _note_before_reaping(self, is_blocking: bool) -> None:
        """Has the end of a fresh process noted while `guild stop` still waits for it: until it is reaped."""
        if not self.is_operation or self.warm_process or self.returncode is not None:
            return
        with contextlib.suppress(ChildProcessError):  # another thread of Guild's has reaped it
            seen = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | (0 if is_blocking else os.WNOHANG))
            if seen:
                self._noted(seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status)

    def _noted(self, exit_status: int) -> int:
        if self.is_operation:
            self.operation.end(exit_status)
            if self.operation.is_cut_off:
                threading.Event().wait()  # this process is about to be killed; Guild must not record an end
        if self.warm_process:
            self.warm_process.release()
        return exit_status


def popen_for(operation: Operation, warm: "WarmServers | None" = None) -> type:
    """Returns the class that Guild's processes are made of while this operation is started and runs."""
    return type("Popen", (_Popen,), {"operation": operation, "warm": warm})


def _reserve_threads_for_guild(operation: Operation) -> None:
    """Lets Guild read the operation's output in threads that exist already: they cannot be refused any more."""
    from guild import op_util

    op_util.threading = types.SimpleNamespace(**{**vars(threading), "Thread": operation.threads.thread})


def start_guild(run_dir: str) -> tuple[int, BaseException | None]:
    """Does what `guild run --start RUN_DIR --yes` does, in this process; returns its exit code, and why it ended."""
    from guild import main_bootstrap

    sys.argv = ["guild", "run", "--start", run_dir, "--yes"]
    try:
        main_bootstrap.main()
    except SystemExit as e:
        # Guild exits with minus the signal that killed the operation. A process's exit code has eight bits.
        return e.code & 0xFF if isinstance(e.code, int) else int(e.code is not None), e
    except Exception as e:  # noqa: BLE001  # any error ends the run, and is reported in one line
        return 1, e
    return 0, None


def report_for_error(error: Exception) -> Report:
    """Returns the report about an error before anything was started."""
    return Report(NOT_STARTED, text_for(error), may_be_of_run=not trouble_in(error))


def run(
    gate: int, claim: pathlib.Path, run_dir: str, options: StarterOptions, warm: "WarmServers | None" = None
) -> Report:
    """Waits at the gate, starts the run, waits for its end, and returns what to report. Raises no error."""
    try:
        operation = Operation(run_dir, claim, options)
    except Exception as e:  # noqa: BLE001  # any error is ours, and not the run's
        return report_for_error(e)
    try:
        signals.set_handler(HANDLED, operation.on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        if not os.read(gate, 1):
            return _given_up(operation)
        _prepare(operation, gate, warm)
    except SystemExit:  # of the handler
        return _given_up(operation)
    except Exception as e:  # noqa: BLE001  # any error is ours, and not the run's
        short = shortage_in(e)
        if not short:
            _print_line(f"cannot prepare the start of the run: {e}")
        return _given_up(operation, short)
    code, error = start_guild(run_dir)
    report = _report_for(operation, code, error)
    try:
        operation.end_what_is_left()
        operation.wait_for_explanation()
        operation.close()
    except SystemExit:
        pass
    except OSError as e:
        _print_line(f"cannot record the end of the run: {e}")
    return report


def _given_up(operation: Operation, short: str = "") -> Report:
    """Returns what to report about a run that was not begun, after a note about it for other hosts."""
    with contextlib.suppress(SystemExit, OSError):
        operation.give_up()
    return Report(NOT_STARTED, short)


def _prepare(operation: Operation, gate: int, warm: "WarmServers | None") -> None:
    """Does what is to be done before Guild starts the run; the gate is open."""
    from guild_dask.home import claims, second_start, snapshot
    from guild_dask.host import processes

    options = operation.options
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
    snapshot.save(operation.run_dir, operation.claim.with_suffix(claims.SAVED))
    second_start.allow(operation.run_dir)
    processes.adopt_orphans()
    signal.signal(signal.SIGCHLD, operation.on_child)
    subprocess.Popen = popen_for(operation, warm)  # type: ignore[assignment, misc]


def _report_for(operation: Operation, code: int, error: BaseException | None) -> Report:
    """Returns what to report after Guild has ended with that exit code, because of that error if there was one."""
    if not operation.is_starting:
        return _report_of_refusal(operation, code, error)
    _print_failure(error)
    if operation.exit_status is not None:
        return Report(operation.exit_status)  # Guild may have been unable to record it
    if isinstance(error, Exception):
        operation.lose()
        return Report(LOST, text_for(error))
    return Report(code)


def _report_of_refusal(operation: Operation, code: int, error: BaseException | None) -> Report:
    """Returns what to report about a run that was not started: this host is short of something, or Guild refused."""
    if code == NOT_STARTED:
        return Report(NOT_STARTED)
    # Guild may have reported an error of the operating system as one of its own, or have gone on without what failed.
    short = operation.shortage or shortage_in(error) or shortage.current(operation.run_dir, SPACE)
    if short:
        return Report(NOT_STARTED, short)
    _print_failure(error)
    return Report(NOT_STARTED) if isinstance(error, OSError) else Report(code, _message_of(error))


def _print_failure(error: BaseException | None) -> None:
    if isinstance(error, OSError):
        _print_line(f"Guild could not read or write a file: {error}")
    elif isinstance(error, Exception):
        _print_line(f"Guild failed: {type(error).__name__}: {error}")


def _message_of(error: BaseException | None) -> str:
    """Returns the last message with which Guild ended, in one line; empty if there is none."""
    while error is not None:
        message = error.code[0] if isinstance(error, SystemExit) and isinstance(error.code, tuple) else None
        if not isinstance(error, SystemExit):
            message = text_for(error)
        if isinstance(message, str) and message:
            return " ".join(message.split())
        error = error.__context__
    return ""


def _print_line(text: str) -> None:
    """Prints a line beside the run's output, if the disk that takes it is not full."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")


def send(report: Report, reports: int) -> None:
    """Flushes what was printed, then sends the report; the worker that reads it may be dead."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    with contextlib.suppress(OSError):
        os.write(reports, report.as_text().encode()[: select.PIPE_BUF])


if __name__ == "__main__":
    gate, reports, *arguments = sys.argv[1:]
    report = run(int(gate), pathlib.Path(arguments[0]), arguments[1], options_for_text(arguments[2]))
    send(report, int(reports))
    os._exit(report.code & 0xFF)  # a flush that fails, or a thread that hangs, must not change the exit code
