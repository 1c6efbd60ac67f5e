"""Says when it starts and when it stops."""

import os
import time

seconds = 1

run_id = os.environ.get("RUN_ID", "without Guild")[:8]
print(f"Run {run_id} starting", flush=True)
time.sleep(seconds)
print(f"Run {run_id} stopping", flush=True)
