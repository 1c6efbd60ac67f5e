"""Signals that reach the main thread, whichever thread the kernel gave them to.

Python runs a signal's handler in the main thread, and wakes that thread up only if the kernel chose it. The kernel
chooses another when the main one has a signal to see to already, as after SIGSTOP and SIGCONT: the handler then waits
for as long as the main thread waits for a process, and a wish to stop is heard by nobody.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable

# Time for the main thread to run the handler by itself.
_PATIENCE = 0.1


def hear(numbers: Iterable[signal.Signals], handler: Callable[[int, object], None]) -> None:
    """Sets the handler for the signals, and sees to it that the first of them gets there."""
    heard = threading.Event()

    def note_and_handle(number: int, frame: object) -> None:
        heard.set()
        handler(number, frame)

    wanted = set(numbers)
    receiving, sending = os.pipe()
    os.set_blocking(sending, False)
    signal.set_wakeup_fd(sending, warn_on_full_buffer=False)
    for number in wanted:
        signal.signal(number, note_and_handle)
    threading.Thread(target=_relay, args=(receiving, wanted, heard), daemon=True).start()


def _relay(receiving: int, wanted: set[signal.Signals], heard: threading.Event) -> None:
    """Sends the main thread what it has not heard. All signals of the process are in the pipe, a byte for each."""
    main = threading.main_thread().ident
    while not heard.is_set():
        (number,) = os.read(receiving, 1)
        if number in wanted and not heard.wait(_PATIENCE) and main:
            signal.pthread_kill(main, number)
