"""A signal is handled whichever thread the kernel delivers it to."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, subprocess, sys, threading
from guild_dask.host import signals

def handle(number, frame):
    print("handled", number, flush=True)
    os._exit(0)

signals.set_handler((signal.SIGTERM, signal.SIGHUP), handle)
sleeping = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)

def elsewhere():
    # The kernel does this when the main thread has a signal pending.
    signal.pthread_kill(threading.get_ident(), signal.SIGWINCH)
    signal.pthread_kill(threading.get_ident(), int(sys.argv[1]))

threading.Timer(0.2, elsewhere).start()
print(sleeping.pid, flush=True)
sleeping.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_to_another_thread_is_handled_while_the_main_one_waits_for_a_process(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(int(number))], stdout=subprocess.PIPE, text=True
    ) as asked:
        assert asked.stdout
        sleeping = int(asked.stdout.readline())
        try:
            assert asked.wait(30) == 0
            assert asked.stdout.read() == f"handled {int(number)}\n"
        finally:
            asked.kill()
            os.kill(sleeping, signal.SIGKILL)
