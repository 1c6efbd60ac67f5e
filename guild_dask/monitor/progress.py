"""The live line below the log on a terminal: counts of runs, and an estimate of the time left."""

import logging
import threading
import time
from collections.abc import Callable

from guild_dask.monitor import estimate, formatting
from guild_dask.monitor.log import OutputStream
from guild_dask.monitor.state import Phase, State
from guild_dask.monitor.terminal import Terminal

log = logging.getLogger("guild")

# Seconds between two refreshes of the line.
_PERIOD = 1.0

# Seconds between two checks whether the log is on the screen, and without a new line until it is taken to be there.
_POLL = 0.005
_QUIET = 0.15

# Seconds between two lines in the log, without a terminal.
_LOG_PERIOD = 60.0

_ERASE = "\r\x1b[K"
_BAR = 20


def text_for(state: State, now: float) -> str:
    """Returns the counts of runs and the estimated time left, as text."""
    parts = [] if state.phase is Phase.WORKING else [state.phase.value]
    parts.append(f"{state.done} of {_whole(state)} done")
    parts += [f"{len(state.running)} running", f"{state.waiting - state.impossible} waiting"]
    parts += [f"{count} {name}" for name, count in state.not_queued.items()]
    parts.append(f"{state.failed} failed")
    if state.terminated:
        parts.append(f"{state.terminated} terminated")
    if state.deleted:
        parts.append(f"{state.deleted} deleted")
    left = estimate.seconds_left(state, now)
    if left is not None:
        least = "at least " if estimate.is_least(state, now) else "~"
        parts.append(f"{least}{formatting.duration(left)} left")
    return ", ".join(parts)


def _whole(state: State) -> int:
    """Returns the number of runs, done or not."""
    return state.done + len(state.running) + state.waiting + state.held + len(state.retrying)


def line_for(state: State, now: float, width: int) -> str:
    """Returns the live line, with a bar if it fits."""
    text = text_for(state, now)
    whole = _whole(state)
    filled = _BAR * state.done // whole if whole else 0
    bar = f"[{'#' * filled}{'.' * (_BAR - filled)}] "
    # Some terminals wrap after a character in the last column.
    return formatting.cut(bar + text if len(bar) + len(text) < width else text, max(1, width - 1))


class Progress:
    """Refreshes the live line or, without a terminal, logs the progress periodically."""

    def __init__(
        self,
        latest: Callable[[], State | None],
        stream: OutputStream,
        terminal: Terminal | None,
        log_period: float = _LOG_PERIOD,
    ) -> None:
        self._latest = latest
        self._stream = stream
        self._terminal = terminal
        self._log_period = log_period
        self._is_shown = False
        self._drawn: tuple[State | None, float, str] = (None, 0.0, "")  # the last line, of which state, and when
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_over = False
        if terminal:
            stream.before_write = self.hide
        run = self._refresh if terminal else self._log
        self._thread = threading.Thread(target=run, name="progress", daemon=True)
        self._thread.start()

    def hide(self) -> None:
        """Erases the line, before the log is written."""
        with self._lock:
            if self._is_shown and self._terminal:
                self._terminal.write(_ERASE)
                self._is_shown = False
                self._wake.set()

    def close(self) -> None:
        """Erases the line and stops refreshing it."""
        self._is_over = True
        self._wake.set()
        self._thread.join()
        self.hide()
        self._stream.before_write = None
        if self._terminal:
            self._terminal.close()

    def _refresh(self) -> None:
        while not self._is_over:
            self._wake.wait(_PERIOD if self._is_shown else _POLL if self._drawn[2] else _QUIET)
            self._wake.clear()
            state = self._latest()
            if state and _whole(state) and not self._is_over:  # before the first poll, nothing is known
                self._draw(state)

    def _draw(self, state: State) -> None:
        assert self._terminal
        with self._lock:
            # The log must be on the screen first.
            if self._stream.is_printed(_QUIET) and self._terminal.is_ours:
                self._terminal.write(_ERASE + self._line(state, time.time(), self._terminal.width))
                self._is_shown = True

    def _line(self, state: State, now: float, width: int) -> str:
        """Returns the live line: the last one if it says the same, since each line of the log has it drawn anew."""
        of_state, at, line = self._drawn
        if state is not of_state or not 0 <= now - at < _PERIOD or len(line) >= width:
            line = line_for(state, now, width)
            self._drawn = (state, now, line)
        return line

    def _log(self) -> None:
        last = ""
        while not self._is_over:
            self._wake.wait(self._log_period)
            state = self._latest()
            if state and not self._is_over and (text := text_for(state, time.time())) != last:
                last = text
                log.info("Progress: %s", text)
