"""A thousand workers on one server: what is lost, how long a message waits, how much memory it is.

    python -m benchmarks.scale [--quick] [--json FILE]

Workers under `asp overlap=true` push at a steady pace, all together `--rate` times a second, and
fetch each version that their push makes; they live in a few processes, each with a thread that
steps all of its workers in turn. One more member of the run asks the server for a sign of life a
hundred times a second: how long the answer takes is how long any message waits until the server
comes to it, that of a push's last chunk like any other. With shards a push is there when all have
said so, and the server does nothing but decide.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Barrier

import numpy as np
import psutil
import zmq

from benchmarks.contenders.team import start_team
from benchmarks.contenders.worker import Still, member
from benchmarks.harness import CONNECT, print_table, server, write_json
from wbsp.layout import TensorSpec
from wbsp.wire import messages as m

SIZE = 148_298  # floats: the CIFAR-10 CNN
PROBES = 100  # a second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=8, help="that the workers live in")
    parser.add_argument("--size", type=int, default=SIZE, help="floats in the model")
    parser.add_argument("--rate", type=float, default=40.0, help="pushes a second of all workers")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--shards", type=int, nargs="+", default=(1, 2))
    parser.add_argument("--quick", action="store_true", help="40 workers for 5 seconds")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    if args.quick:
        args.workers, args.processes, args.seconds = 40, 2, 5.0
    rows = []
    try:
        for shards in args.shards:
            rows.append(_run(args, shards))
    except (OSError, RuntimeError) as error:
        sys.exit(f"benchmarks.scale: {error}")
    print_table(("shards", "workers", "pushes", "lost", "pushes/s", "wait ms median", "99 %",
                 "longest", "below 5 ms %", "memory MB"),
                [(str(row["shards"]), f"{row['workers']:,}", f"{row['pushes']:,}", str(row["lost"]),
                  f"{row['pushes_per_second']:.1f}",
                  *(f"{row['wait_ms'][name]:.2f}" for name in ("median", "99 %", "longest")),
                  f"{row['below_5_ms']:.1%}", f"{row['memory_mb']:,.0f}") for row in rows])
    print(f"load of this machine: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    write_json(args.json, {"scale": rows})


def _run(args: argparse.Namespace, shards: int) -> dict:
    """One run with so many shards."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = stack.enter_context(server(
            "asp", args.workers + 1, None, "--sync_option=overlap=true", f"--shards={shards}",
            f"--log_root={folder}", "--base_dir=run"))
        probe = stack.enter_context(_Probe(address, args.workers, args.size))
        pause = args.workers / args.rate
        team = stack.enter_context(start_team(_crowd, [
            (address, part.tolist(), args.size, pause, args.seconds)
            for part in np.array_split(np.arange(args.workers), args.processes)]))
        probe.watch(args.seconds)
        memory = _memory(address)
        cuts = sum(team.answers())
        accepted = _accepted(next(folder.rglob("events.jsonl")))
    return {"shards": shards, "workers": args.workers, "pushes": cuts, "lost": cuts - accepted,
            "pushes_per_second": args.rate, "memory_mb": memory, "below_5_ms": float(np.mean(
                np.array(probe.waits) < 5)), "wait_ms": {
                    "median": statistics.median(probe.waits), "longest": max(probe.waits),
                    "99 %": float(np.percentile(probe.waits, 99))}}


def _accepted(events: Path) -> int:
    """Number of pushes that were accepted, each once."""
    with open(events) as file:
        found = [(event["worker"], event["seq"]) for event in map(json.loads, file)
                 if event["kind"] == "accept"]
    if len(found) != len(set(found)):
        raise RuntimeError("a push was accepted twice")
    return len(found)


def _memory(address: str) -> float:
    """MB that the server and its shards have in memory."""
    flag = f"--port_base={address.rpartition(':')[2]}"
    (server_,) = [one for one in psutil.process_iter(["cmdline"])
                  if flag in (one.info["cmdline"] or [])]
    return sum(one.memory_info().rss for one in (server_, *server_.children())) / 1e6


class _Probe(contextlib.AbstractContextManager):
    """A member of the run that pushes nothing, and asks for signs of life."""

    def __init__(self, address: str, worker: int, size: int):
        self.waits: list[float] = []  # milliseconds
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(f"tcp://{address.replace('localhost', '127.0.0.1')}")
        self._worker, self._layout = worker, [TensorSpec("x", (size,))]

    def __exit__(self, *_: object) -> None:
        self._context.destroy(0)

    def watch(self, seconds: float) -> None:
        """Join as the last, so that the run begins, ask for so long, and leave."""
        self._send(m.Hello(m.PROTOCOL, self._worker, {}))
        self._hears(m.Welcome)
        self._send(m.Join(self._layout))
        self._hears(m.Granted)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            asked = time.perf_counter()
            self._send(m.Heartbeat(None))
            self._hears(m.Alive)
            self.waits.append(1000 * (time.perf_counter() - asked))
            time.sleep(1 / PROBES)
        self._send(m.Leaving("all asked", False, None))
        self._send(m.Goodbye())

    def _send(self, message: m.Message) -> None:
        self._socket.send(m.encode(message))

    def _hears(self, kind: type[m.Message]) -> m.Message:
        end = time.monotonic() + CONNECT
        while self._socket.poll(1000 * max(0.0, end - time.monotonic())):
            message = m.decode(m.FromServer, self._socket.recv_multipart()[0])
            if isinstance(message, kind):
                return message
        raise RuntimeError(f"the server sent no {kind.__name__} within {CONNECT:g} s")


def _crowd(pipe: Connection, address: str, workers: list[int], size: int, pause: float,
           seconds: float) -> None:
    """Some of the workers; answers when they have joined, and then with the number of their cuts.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each worker has some twenty
    # So that it is not their own demand for these cores which delays the server; each thread that
    # waits for the interpreter would wake 200 times a second.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    sys.setswitchinterval(1)
    with ThreadPoolExecutor(len(workers)) as pool:
        joined = Barrier(len(workers), lambda: pipe.send(0))
        cuts = list(pool.map(lambda w: _work(address, w, size, pause, seconds, joined), workers))
    pipe.send(sum(cuts))


def _work(address: str, worker: int, size: int, pause: float, seconds: float,
          all_joined: Barrier) -> int:
    """One worker from its beginning to its end; the number of its cuts."""
    replica = _Counting(size)
    transport, runtime = member(address, worker, replica)
    all_joined.wait(CONNECT)
    runtime.start()
    end = time.monotonic() + seconds
    time.sleep(pause * random.Random(worker).random())  # not all at a time
    while time.monotonic() < end:
        runtime.step_begins()
        runtime.step_done(samples=1, loss=0.0)
        time.sleep(pause)
    runtime.finish()
    transport.close()
    return replica.cuts


class _Counting(Still):
    """Counts what it was asked to hand over."""

    cuts = 0

    def cut(self) -> np.ndarray:
        self.cuts += 1
        return super().cut()


if __name__ == "__main__":
    main()
