"""The parts of the check: each a function of a place, a plan and a time to give up, that returns
rows, each a dict for JSON with `ok`. Each raises PartError, RuntimeError or OSError where it fails.

All computing is done in processes of their own: no back end is imported here.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from scripts.gpu.device import PartError, Place, Process
from scripts.harness import ratios, server
from wbsp.heterogeneity import SLEEPS
from wbsp.runlog.folder import run_folder
from wbsp.runlog.reader import read_run

# |W_there - W_here| / |W_here - W_0|, L2. TensorFlow and JAX, both on a CPU, differ by 7e-7; a
# GPU's convolutions may take sums of other form.
TOLERANCE = 1e-3
STEPS = 10  # to that
SIZES_MB = 0.6, 102, 553  # the models cnn, resnet50 and vgg16

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    networks: list[str]  # for the cost of the hook
    batch_size: int | None  # of all networks; None: as `batch` says
    image_size: int | None  # pixels of a side, for ImageNet's networks; None: as published
    small: str  # the network of all other parts
    pairs: int
    epochs: int  # timed in each turn of a pair
    seconds: float  # of one worker's training
    sizes_mb: tuple[float, ...] = SIZES_MB

    def batch(self, network: str) -> int:
        """Examples in a step; 32 of ImageNet's pictures fit into small GPUs, too."""
        return self.batch_size or (128 if network in ("cnn", self.small) else 32)


def versions(place: Place, plan: Plan, end: float) -> Rows:
    """Two rows. exact: what adoptions and cuts compute, one subtraction and one addition of
    float32, differs from numpy's in no bit, and on a GPU it is computed there. trained: a worker
    under asp makes `STEPS` steps in float32, without TF32; its last version differs from that of
    the same run on the CPU, from the same W_0 on the same batches, by `TOLERANCE` of the way from
    W_0 at most. Sums are made in another order there, and each step makes more of the differences.
    """
    with Process(place) as there, Process(Place(place.back_end, "cpu")) as here:
        there.send("versions.exact", plan.small)
        start = here.call("versions.initial", plan.small, end=end)
        exact = there.result(end)
        last = []
        for process in here, there:
            with server("asp", workers=1) as address:
                last.append(process.call("versions.train", address, plan.small, start, STEPS, 32,
                                         end=end))
    away, way = (float(np.linalg.norm(a.astype(float) - b))
                 for a, b in ((last[1], last[0]), (last[0], start)))
    on_host = place.device == "gpu" and exact["host"]
    return [{"what": "exact", "floats": start.size, **exact,
             "ok": not any(exact["wrong"].values()) and not on_host},
            {"what": "trained", "steps": STEPS, "difference": away / way, "tolerance": TOLERANCE,
             "ok": bool(away <= TOLERANCE * way)}]


def hook(place: Place, plan: Plan, end: float, network: str) -> Rows:
    """Return a row: a plain fit beside the same fit as a worker under pcc, in pairs of turns."""
    with Process(place) as process:
        batch = plan.batch(network)
        figures = process.call("fits.overhead", network, batch, plan.image_size, plan.pairs,
                               plan.epochs, end=end)
    return [{"network": network, "batch_size": batch, **figures, "ok": True}]


def h1(place: Place, plan: Plan, end: float) -> Rows:
    """Return a row for each of two models: two workers on one GPU, of which worker 1 sleeps half a
    second before each step, and each worker's share of computing, from the run's summary."""
    rows = []
    with _two_workers(place, plan, end) as workers:
        for sync in "pcc", "wbsp":
            with tempfile.TemporaryDirectory() as folder:
                with server(sync, 2, f"--log_root={folder}") as address:
                    _work(workers, address, plan, 2 * plan.seconds, SLEEPS["H1"], end)
                summary = read_run(run_folder(sync, folder, resume=True)).summary
            if summary is None:
                raise PartError(f"the run under {sync} has left no summary")
            both = [summary["workers"][worker] for worker in "01"]
            rows.append({"sync": sync, "version": summary["version"],
                         "steps": [one["steps"] for one in both],
                         "shares": [one["shares"] for one in both], "ok": summary["version"] > 0})
    return rows


def together(place: Place, plan: Plan, end: float) -> Rows:
    """Return a row: steps a second of two workers of a run on one GPU, added, beside those of one
    alone, in pairs; the later half of each training counts."""
    alone: list[float] = []
    both: list[float] = []
    with _two_workers(place, plan, end) as workers:
        for pair in range(3):
            turns = [(alone, workers[:1]), (both, workers)]
            for speeds, members in turns if pair % 2 else reversed(turns):
                with server("pcc", len(members)) as address:
                    speeds.append(_work(members, address, plan, plan.seconds, 0.0, end))
    return [{"network": plan.small, "batch_size": plan.batch(plan.small), "alone": alone,
             "both": both, "both/alone": ratios(both, alone), "ok": True}]


def trips(place: Place, plan: Plan, end: float) -> Rows:
    """Return a row for each size: round trips of a model from the device's memory to the server
    and back, beside a copy to the host and one back."""
    rows = []
    with Process(place) as process:
        for mb in plan.sizes_mb:
            with server("asp", workers=1) as address:
                rows.append({**process.call("trips.trips", address, round(mb * 1e6 / 4),
                                            plan.seconds, end=end), "ok": True})
    return rows


@contextlib.contextmanager
def _two_workers(place: Place, plan: Plan, end: float) -> Iterator[list[Process]]:
    """Two processes that have the network ready, so that they begin to train together."""
    with Process(place) as first, Process(place) as second:
        for process in first, second:
            process.send("fits.warm", plan.small, plan.batch(plan.small))
        for process in first, second:
            process.result(end)
        yield [first, second]


def _work(workers: list[Process], address: str, plan: Plan, seconds: float, sleep: float,
          end: float) -> float:
    """Let them train in one run, those of odd numbers after a sleep before each step; the sum of
    their steps a second."""
    for number, process in enumerate(workers):
        process.send("fits.work", address, number, plan.small, plan.batch(plan.small), seconds,
                     sleep * (number % 2))
    done = [process.result(end) for process in workers]
    return sum(one["steps"] / one["seconds"] for one in done)


def all_of(plan: Plan) -> dict[str, Callable[[Place, Plan, float], Rows]]:
    """Name -> part, in the order in which they are done."""
    def of(network: str) -> Callable[[Place, Plan, float], Rows]:
        return lambda place, plan, end: hook(place, plan, end, network)

    return {"versions": versions, **{f"hook {network}": of(network) for network in plan.networks},
            "together": together, "h1": h1, "trips": trips}
