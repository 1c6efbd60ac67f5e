"""A process that has imported Guild and forks a starter for each run, so that a start need not import Guild.

`fork_client` runs this file: `python forkserver.py SOCKET`. It has one thread, and no state but imported modules.
Each request comes with three descriptors: the starter's gate, its output, and a pipe for its report. The reply is the
starter's process id, or minus the number of the error if the operating system starts no more processes. The forkserver
ends when the worker closes the socket or dies; its starters go on. It also starts warm servers, from which starters get
the processes of operations.
"""

import sys

if __name__ == "__main__":
    # Python puts the folder of this file first on the path, where our modules would shadow the user's.
    if sys.path[0] == __file__.rpartition("/")[0]:
        sys.path.pop(0)

import contextlib
import errno
import gc
import json
import os
import pathlib
import select
import signal
import socket
from typing import Any

from guild_dask.host import processes
from guild_dask.worker import starter
from guild_dask.worker.job import NOT_STARTED, Report
from guild_dask.worker.options import options_for_text
from guild_dask.worker.warm_client import WarmServers

# The modules that a start imports, up to the first line that the operation prints.
_PRELOADED = (
    "guild.main_bootstrap",
    "guild.main",
    "guild.commands.main",
    "guild.commands.run",
    "guild.commands.run_impl",
    "guild.commands.main_impl",
    "guild.summary",
    "guild.plugin",
    "absl.logging",
    "tensorboard.summary.writer.event_file_writer",
    "tensorboard.compat.proto.summary_pb2",
    "guild_dask.home.attempts",
    "guild_dask.home.claims",
    "guild_dask.home.run_processes",
    "guild_dask.home.run_queue",
    "guild_dask.home.second_start",
    "guild_dask.home.snapshot",
)

_LENGTH = 8
_DESCRIPTORS = 3


def load() -> None:
    """Imports what starts need. A module that cannot be imported here fails again, visibly, in the start itself."""
    gc.disable()
    for name in _PRELOADED:
        with contextlib.suppress(Exception):
            exec(f"import {name}", {"__name__": "guild"})  # as Guild does it: the mend of protobuf is for Guild only
    with contextlib.suppress(ImportError):
        use_libyaml()
    # The garbage collector would touch every page of the imported modules and undo copy-on-write.
    gc.freeze()
    gc.enable()


def use_libyaml() -> None:
    """Makes Guild read and write its records with libyaml, if PyYAML was built with it.

    A start spends most of its time on these records. The values are the same. What libyaml rejects, such as a lone
    surrogate in a variable or text that is not YAML, falls back to PyYAML's own code, so errors are the same, too.
    """
    import yaml

    if not yaml.__with_libyaml__:
        return
    slow_load, slow_dump = yaml.safe_load, yaml.safe_dump

    def safe_load(stream: Any) -> Any:
        with contextlib.suppress(Exception):
            return yaml.load(stream, Loader=yaml.CSafeLoader)
        if hasattr(stream, "seek"):
            stream.seek(0)
        return slow_load(stream)

    def safe_dump(data: Any, stream: Any = None, **options: Any) -> Any:
        if stream is None:
            with contextlib.suppress(Exception):
                return yaml.dump(data, Dumper=yaml.CSafeDumper, **options)
        return slow_dump(data, stream, **options)

    yaml.safe_load, yaml.safe_dump = safe_load, safe_dump


def handle_ignored() -> None:
    """Handles the signals that starters handle, where they are ignored, as under nohup.

    The programs that starters start do not inherit that. Warm servers, which the forkserver starts, must not either.
    """
    for number in starter.HANDLED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


def serve(requests: socket.socket) -> None:
    """Forks a starter for each request until the socket is closed."""
    # The starters report through pipes how they ended. Here they, and the orphans that they leave, are only reaped.
    processes.adopt_orphans()
    handle_ignored()
    signal.signal(signal.SIGCHLD, lambda _number, _frame: processes.reap_adopted(()))
    warm = WarmServers()
    with contextlib.suppress(ConnectionError, BrokenPipeError), contextlib.closing(warm):  # the worker died
        while received := _next(requests, warm):
            request, descriptors = received
            # Block signals until the starter handles them: one that kills it earlier would leave no record.
            signal.pthread_sigmask(signal.SIG_BLOCK, starter.HANDLED)
            try:
                pid = os.fork()
            except OSError as e:
                pid = -(e.errno or errno.EAGAIN)
            if pid:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, starter.HANDLED)
            else:
                requests.close()
                warm.inherit()
                _become_starter(request, descriptors, warm)
            for descriptor in descriptors:
                os.close(descriptor)
            requests.sendall(pid.to_bytes(_LENGTH, "big", signed=True))


def _next(requests: socket.socket, warm: WarmServers) -> tuple[dict[str, Any], list[int]] | None:
    """Returns the next request, and looks after the warm servers until it comes."""
    while True:
        ready, _, _ = select.select([requests, *warm.watched], [], [])
        for each in ready:
            if each is not requests:
                warm.handle(each)
        if requests in ready:
            return _receive(requests)


def _receive(requests: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    head, descriptors, _, _ = socket.recv_fds(requests, _LENGTH, _DESCRIPTORS)
    if len(head) < _LENGTH or len(descriptors) < _DESCRIPTORS:
        return None
    body = b""
    length = int.from_bytes(head, "big")
    while len(body) < length:
        part = requests.recv(length - len(body))
        if not part:
            return None
        body += part
    request: dict[str, Any] = json.loads(body)
    return request, descriptors


def _become_starter(request: dict[str, Any], descriptors: list[int], warm: WarmServers) -> None:
    """Makes the forked process like a new one, runs the starter, and exits. Does not return."""
    gate, output, reports = descriptors
    report = Report(NOT_STARTED)
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environ"])
        options = options_for_text(request["options"])
        report = starter.run(gate, pathlib.Path(request["claim"]), request["run_dir"], options, warm)
    except Exception as e:  # noqa: BLE001  # nothing has started
        report = starter.report_for_error(e)
    finally:
        starter.send(report, reports)
        os._exit(report.code & 0xFF)


if __name__ == "__main__":
    load()
    serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # the worker waits for this exit, and finalizing the imported modules takes long
