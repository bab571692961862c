"""Which modules of wbsp run on a journey, in the order in which they are entered.

    python scripts/journeys.py [push] [cut] [range] [takeover]

Real processes train a small network with Keras (JAX) on shared data over TCP. A journey is what
happens between two moments that the user's own callback sees, so it is the same for any release:

    push       a step, its push, and the version that answers it (bsp, one worker)
    cut        the same at a site: its server pushes a cut, and adopts the version from above
    range      steps in which nothing is pushed, and the server assigns more examples (two workers)
    takeover   from the death of the server to the next step, with a standby
"""

import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = f"{ROOT / 'wbsp'}{os.sep}"
FIRST = {"push": 6, "cut": 6, "range": 5, "takeover": 6}  # first step of a journey
STEPS = {"push": 1, "cut": 1, "range": 100, "takeover": None}  # of it; None: to the next

TRAIN = """
import json, os, sys, time
import keras
import numpy as np
import wbsp

n, batch = int(sys.argv[4]), 4
x, y = np.ones((n, 8), np.float32), np.ones((n, 1), np.float32)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
hook = wbsp.SyncCallback(sys.argv[1], worker_index=int(sys.argv[3]), transport="tcp",
                         connect_timeout=600)


class Steps(keras.callbacks.Callback):
    count = 0

    def on_train_batch_begin(self, batch, logs=None):
        print("step", self.count, time.monotonic(), flush=True)
        self.count += 1
        if self.count > int(sys.argv[2]):
            time.sleep(0.05)


model.fit(hook.examples(lambda i: (x[i], y[i]), n, batch), epochs=1, verbose=0,
          steps_per_epoch=hook.UNTIL_TOLD, callbacks=[hook, Steps()])
"""


def traced(output: str, command: list[str]) -> None:
    """Run a module or script in this process; write when which module was entered to `output`."""
    entered: list[tuple[float, str]] = []
    names: dict[object, str | None] = {}

    def note(frame, event, _):
        if event != "call":
            return
        code = frame.f_code
        if code not in names:
            inside = code.co_filename.startswith(SOURCES)
            names[code] = code.co_filename[len(SOURCES):] if inside else None
        if (name := names[code]) is not None and code.co_name != "<module>":
            entered.append((time.monotonic(), name))

    sys.path.insert(0, str(ROOT))
    sys.argv = command
    if command[0].endswith(".py"):
        import keras  # noqa: F401 - traced, it would take a minute
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        if command[0].endswith(".py"):
            runpy.run_path(command[0], run_name="__main__")
        else:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        with open(output, "w") as file:
            json.dump(entered[:], file)


class Processes(contextlib.ExitStack):
    """Traced processes, which end with this object."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder
        self.running: dict[str, subprocess.Popen] = {}

    def start(self, name: str, *command: str) -> None:
        log = self.enter_context(open(self.folder / f"{name}.log", "w"))
        process = subprocess.Popen(
            [sys.executable, __file__, "--trace", str(self.folder / f"{name}.json"), *command],
            cwd=self.folder, stdout=log, stderr=subprocess.STDOUT,
            env={**os.environ, "KERAS_BACKEND": "jax", "CUDA_VISIBLE_DEVICES": "",
                 "PYTHONUNBUFFERED": "1", "WBSP_TRANSPORT": "tcp"})
        self.callback(process.kill)
        self.running[name] = process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_for(self, name: str, text: str) -> None:
        end = time.monotonic() + 600
        while text not in self.log(name):
            if self.running[name].poll() not in (None, 0) or time.monotonic() > end:
                raise SystemExit(f"{name} has not said {text!r}:\n{self.log(name)}")
            time.sleep(0.05)

    def entered(self, name: str, since: float, until: float) -> list[str]:
        """Return the modules in which a function began between two moments, in that order."""
        with open(self.folder / f"{name}.json") as file:
            return list(dict.fromkeys(module for now, module in json.load(file)
                                      if since <= now < until))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def travel(journey: str, folder: Path) -> dict[str, list[str]]:
    """Make a journey; return the modules of each process."""
    with Processes(folder) as all:
        ports = [free_port() for _ in range(2)]
        address = f"localhost:{ports[0]}"
        workers = 2 if journey == "range" else 1
        period = 0.2 if journey == "takeover" else 3600
        plain = (f"--worker_num={workers}", f"--check_period={period}", "--one_run",
                 "--connect_timeout=600")
        model = ("--sync=localsgd", "--sync_option=tau=1000") if journey == "range" else (
            "--sync=bsp",)
        all.start("server", "wbsp.ps", *plain, *model, f"--port_base={ports[0]}")
        all.wait_for("server", "waiting for")
        if journey == "cut":
            all.start("site", "wbsp.site", *plain, *model, f"--port_base={ports[1]}",
                      f"--upstream={address}", "--site=0")
            all.wait_for("site", "waiting for")
            address = f"localhost:{ports[1]}"
        if journey == "takeover":
            all.start("standby", "wbsp.ps", *plain, *model, f"--port_base={ports[1]}",
                      f"--standby_of={address}")
            address += f",localhost:{ports[1]}"
        (folder / "train.py").write_text(TRAIN)
        first = FIRST[journey]
        slowly = str({"takeover": first, "range": 0}.get(journey, 10**6))
        for worker in range(workers):
            # of a range, enough for the worker that builds its model last
            all.start(f"worker{worker or ''}", "train.py", address, slowly, str(worker),
                      "9600" if journey == "range" else "960")
        died = 0.0
        if journey == "takeover":
            all.wait_for("worker", f"step {first} ")
            all.wait_for("server", "holds version")
            died = time.monotonic()
            all.running.pop("server").send_signal(signal.SIGKILL)
        for process in all.running.values():
            process.wait(300)
        times = {int(step): float(now) for _, step, now in (
            line.split() for line in all.log("worker").splitlines() if line.startswith("step "))}
        if journey == "takeover":
            since = died
            until = min(now for now in times.values() if now > died + 1)  # not one in between
        else:
            if first not in times:
                logs = "\n".join(map(all.log, all.running))
                raise SystemExit(f"the worker made no step {first}:\n{logs}")
            since, until = times[first], times[first + (STEPS[journey] or 1)]
        return {name: all.entered(name, since, until) for name in all.running
                if name != "worker1"}


def main(names: list[str]) -> None:
    for journey in names or list(FIRST):
        with tempfile.TemporaryDirectory(prefix="wbsp-journey-") as folder:
            found = travel(journey, Path(folder))
        modules = dict.fromkeys(module for entered in found.values() for module in entered)
        print(f"{journey}: {len(modules)} modules")
        for name, entered in found.items():
            print(f"  {name} ({len(entered)}): {', '.join(entered)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trace"]:
        traced(sys.argv[2], sys.argv[3:])
    else:
        main(sys.argv[1:])
