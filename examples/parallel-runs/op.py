"""Waits for a number of seconds."""

import time

sleep = 1

print(f"Waiting {sleep} second(s)", flush=True)
time.sleep(sleep)
