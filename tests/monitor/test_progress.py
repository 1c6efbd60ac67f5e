"""The live line: it is below the log in a real terminal, and nowhere else."""

import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import termios
import time
from dataclasses import replace

import pytest

from guild_dask.monitor.log import OutputStream
from guild_dask.monitor.progress import Progress, line_for, text_for
from guild_dask.monitor.state import RunningRun, State, WaitingKind, WorkerState
from guild_dask.plan.reasons import TooLarge
from tests.support.sandbox import DEADLINE, Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, stage

OPERATIONS = """
nap: {exec: 'sleep ${seconds}', flags: {seconds: 1}}
chat: {exec: 'python -u chat.py'}
"""
CHAT = "import time\nfor i in range(40):\n    print(f'line {i} of the output')\n    time.sleep(0.05)\n"
SCHEDULER = f"run dask:scheduler workers=1 run-once=yes {NO_DASHBOARD} --run-id sss -y"

LOG_LINE = re.compile(r"(INFO|WARNING): \[guild\] \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z].*")
PROGRESS = re.compile(r"\[[#.]{20}\] \d+ of \d+ done, \d+ running, \d+ waiting, \d+ failed")


class Terminal:
    """A terminal with `guild` in its foreground, which keeps all lines."""

    def __init__(self, command: str, shell: bool = False, columns: int = 100) -> None:
        words = ["sh", "-c", command] if shell else ["guild", *shlex.split(command)]
        self._fd, terminal = pty.openpty()
        # Not pty.fork(): this process has threads, and a fork of such a process is deprecated.
        self._process = subprocess.Popen(["setsid", "--ctty", *words], stdin=terminal, stdout=terminal, stderr=terminal)
        os.close(terminal)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.written = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self, seconds: float = 0.1) -> bool:
        """Reads new output; returns False when no process has the terminal open."""
        while select.select([self._fd], [], [], seconds)[0]:
            try:
                data = os.read(self._fd, 10_000)
            except OSError:
                return False
            if not data:
                return False
            self.written += data
        return True

    def read_until(self, pattern: "re.Pattern[str]") -> None:
        deadline = time.monotonic() + DEADLINE
        while not pattern.search(self.written.decode(errors="replace")):
            assert self.read(), self.screen()
            assert time.monotonic() < deadline, self.screen()

    def finish(self) -> int:
        deadline = time.monotonic() + DEADLINE
        while self.read():
            assert time.monotonic() < deadline, self.screen()
        os.close(self._fd)
        return self._process.wait()

    def screen(self) -> list[str]:
        """Returns the lines as they are on the screen, without overwritten and erased text."""
        lines, column = [""], 0
        for part in re.findall(r"\x1b\[K|\r|\n|[^\x1b\r\n]+|\x1b", self.written.decode(errors="replace")):
            if part == "\n":
                lines.append("")
            elif part == "\r":
                column = 0
            elif part == "\x1b[K":
                lines[-1] = lines[-1][:column]
            else:
                lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + len(part) :]
                column += len(part)
            column = 0 if part == "\n" else column
        return lines


def test_terminal_shows_a_live_line_and_the_log_stays_whole(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS, {"chat.py": CHAT})
    stage(guild, "nap seconds=2", "aaa")
    stage(guild, "chat", "bbb")
    stage(guild, "nap seconds=2", "ccc")
    terminal = Terminal(SCHEDULER)
    assert terminal.finish() == 0
    seen = terminal.written.decode()
    assert re.search(r"0 of 3 done, 1 running, 2 waiting, 0 failed", seen)
    assert re.search(r"2 of 3 done, 1 running, 0 waiting, 0 failed, ~\d+ s left", seen), "with an estimate"
    while_it_chats = seen[seen.index("line 0 ") : seen.index("line 39 ")]
    assert while_it_chats.count("1 of 3 done") >= 5, "the line is back before the next line of output, not at its end"
    lines = [line for line in terminal.screen() if line]
    output_lines = [line for line in lines if line.startswith("line ")]
    assert output_lines == [f"line {number} of the output" for number in range(40)]
    assert all(LOG_LINE.fullmatch(line) for line in lines if not line.startswith("line ")), lines
    output = (user.guild_home / "runs" / "sss" / ".guild" / "output").read_text()
    assert output.splitlines() == lines, "the record has the log without the live line"


def test_terminal_prefixes_output_with_the_run_if_several_may_run(user: Sandbox, guild: Guild) -> None:
    a_project(user, "say: {exec: 'echo ${text}', flags: {text: x}}")
    stage(guild, "say text=hello", "aaa")
    stage(guild, "say text=bye", "bbb")
    terminal = Terminal(SCHEDULER.replace("workers=1", "workers=2"))
    assert terminal.finish() == 0
    assert {"aaa | hello", "bbb | bye"} <= set(terminal.screen())


def test_line_is_as_wide_as_the_terminal_at_most(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=3", "aaa")
    terminal = Terminal(SCHEDULER, columns=30)
    assert terminal.finish() == 0
    drawn = [part for part in terminal.written.decode().split("\r\x1b[K") if " of 1 done" in part]
    assert drawn
    assert all(len(part.partition("\r")[0]) < 30 for part in drawn)


@pytest.mark.parametrize("command", ["guild {} > file", "guild {} | cat", "guild {} progress=no"])
def test_there_is_no_line_without_a_terminal(user: Sandbox, guild: Guild, command: str) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=2", "aaa")
    terminal = Terminal(command.format(SCHEDULER), shell=True)
    assert terminal.finish() == 0
    assert b"\x1b" not in terminal.written
    assert b" of 1 done" not in terminal.written


def test_daemon_leaves_the_terminal_alone(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=2", "aaa")
    terminal = Terminal(f"guild {SCHEDULER} --background; sleep 4", shell=True)
    assert terminal.finish() == 0
    assert b" of 1 done" not in terminal.written
    wait_until(lambda: "Stopping Dask cluster" in guild("cat --output sss").output)


def test_runs_do_not_see_the_terminal(user: Sandbox, guild: Guild) -> None:
    a_project(user, "show: {exec: 'env'}")
    stage(guild, "show", "aaa")
    terminal = Terminal(SCHEDULER)
    assert terminal.finish() == 0
    assert "GUILD_HOME" in guild("cat --output aaa").output
    assert "GUILD_DASK_TERMINAL" not in guild("cat --output aaa").output


def test_interrupt_ends_it_and_erases_the_line(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=60", "aaa")
    terminal = Terminal(SCHEDULER)
    terminal.read_until(PROGRESS)
    os.kill(terminal.pid, signal.SIGTERM)
    os.killpg(terminal.pid, signal.SIGINT)
    terminal.finish()
    assert not any(PROGRESS.search(line) for line in terminal.screen()), terminal.screen()


def test_all_runs_are_counted() -> None:
    state = State("s", "h", 1, 0.0, waiting=1, held=2, retrying={"a": 9.0}, ends={"completed": 4})
    assert text_for(state, 1.0) == "4 of 8 done, 0 running, 1 waiting, 2 held, 1 retrying, 0 failed"
    never = WaitingKind(1, {"gpu": 7.0}, TooLarge("gpu", 7.0, 1.0))
    state = replace(state, waiting=3, kinds=(never,))
    assert text_for(state, 1.0).startswith("4 of 10 done, 0 running, 2 waiting, 1 impossible, 2 held")


def test_text_has_what_is_done_and_what_is_left() -> None:
    state = State(
        "s",
        "h",
        1,
        0.0,
        workers=(WorkerState("w", "h", 1, 1),),
        running=(RunningRun("a", "train", "w", "h", 100.0, 0.0, 1),),
        waiting=2,
        kinds=(WaitingKind(2),),
        ends={"completed": 3, "failed": 1, "terminated": 1},
        durations={"train": 60.0},
    )
    assert text_for(state, 130.0) == "5 of 8 done, 1 running, 2 waiting, 1 failed, 1 terminated, ~2 min left"
    assert line_for(state, 130.0, 100).startswith("[############........] 5 of 8 done")
    assert line_for(state, 130.0, 75) == "5 of 8 done, 1 running, 2 waiting, 1 failed, 1 terminated, ~2 min left"
    assert line_for(state, 130.0, 10) == "5 of 8 d…"


def test_progress_is_logged_periodically_without_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    state = State("s", "h", 1, 0.0, waiting=2, ends={"completed": 3})
    with caplog.at_level("INFO", logger="guild"), open(os.devnull, "wb") as nowhere:
        shown = Progress(lambda: state, OutputStream(nowhere.fileno()), None, log_period=0.05)
        wait_until(lambda: caplog.text.count("Progress: 3 of 5 done, 0 running, 2 waiting, 0 failed") == 1)
        shown.close()
    assert caplog.text.count("Progress:") == 1, "once while nothing changes"
