"""The second signal ends a process at once, wherever in Python it is."""

import signal

import pytest
from jobs import Jobs, interrupted

DOINGS = {
    "computing": "while True: pass",
    "waiting for a thread": "pool.submit(time.sleep, 600).result()",
    "starting threads": "while True: threading.Thread(target=int).start()",
    "at Python's own exit": "pool.submit(time.sleep, 600)",
}
CODE = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
from wbsp.process.signals import Interrupts
interrupts = Interrupts().install()
interrupts.end_with(lambda: 1 / 0)
interrupts.end_with(lambda: print("bye", flush=True))
pool = ThreadPoolExecutor()
threading.Thread(target=lambda: [time.sleep(0.01) for _ in iter(lambda: interrupts.first, 2)] and
                 print("asked\\n", end="", flush=True), daemon=True).start()
print("ready", flush=True)
"""


@pytest.mark.parametrize("doing", DOINGS)
def test_the_second_signal_ends_the_process_wherever_it_is(tmp_path, doing):
    with Jobs(tmp_path) as jobs:
        job = jobs.start("job", "-c", CODE + DOINGS[doing])
        job.until("ready")
        job.signal(signal.SIGINT)
        job.until("asked")
        assert job.process.poll() is None and not job.find("bye")
        job.signal(signal.SIGTERM)
        interrupted(job, signal.SIGTERM, patience=10)
        assert job.lines == ["ready", "asked", "bye"]
