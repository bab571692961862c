"""A recorded run as the cluster that it was: its step times, bytes, batch and loss curve.

A run shows what its machines did under one model. What they would have done under another one is
predicted from its pace on this cluster (`screen`), and from the steps that the run needed.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from wbsp.figures.table import markdown
from wbsp.runlog.reader import Run, read_run
from wbsp.simulate.study import worth
from wbsp.simulate.study.measure import law_of
from wbsp.simulate.study.runs import Plan
from wbsp.simulate.study.screen import Screened, screen
from wbsp.simulate.study.spec import ClusterSpec, Group
from wbsp.simulate.study.variants import Variant
from wbsp.simulate.world.payload import Payload
from wbsp.sync.noise import Pushed, sums_of
from wbsp.tensors.codecs import parse

MOST = 2000  # newest step times of a worker
DIFFERENT = 1.5  # largest over smallest batch of a worker, from which on they tell a law
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # bytes, in a file of safetensors


@dataclass(frozen=True)
class Recorded:
    """What a run shows about its machines, and what it does not show.

    Attributes:
        run: the run.
        cluster: its machines and their links.
        batch: examples of a step.
        noise: noise scale of the gradients in batches; None: it was not measured.
        curve: (seconds, steps of all workers, loss), in order of time.
        loss: what the curve is of.
        useful: part of the steps that counted, by the noise; 1 where it is not known.
        unknown: a line for each thing that the run does not show.
    """

    run: Run
    cluster: ClusterSpec
    batch: int
    noise: float | None
    curve: tuple[tuple[float, int, float], ...]
    loss: str
    useful: float
    unknown: tuple[str, ...]

    def reached(self, target: float | None) -> tuple[float, int, float] | None:
        """Return the first point of the curve with a loss of at most `target`, or without one the
        point of the least loss; None: the curve is empty."""
        if target is None:
            return min(self.curve, key=lambda point: point[2], default=None)
        return next((point for point in self.curve if point[2] <= target), None)


def recorded(folder: str | os.PathLike[str]) -> Recorded:
    """Return what the run in a folder shows about its machines.

    Raises:
        FileNotFoundError: it is not a run's folder; one line.
        ValueError: its files are damaged, or no worker has made a step; one line.
    """
    run = read_run(folder)
    pushes: dict[int, list[dict[str, Any]]] = {}
    for event in run.events:
        if event["kind"] == "accept" and event["steps"] > 0 and event["samples"] > 0:
            pushes.setdefault(event["worker"], []).append(event)
    if not pushes:
        raise ValueError(f"--from={folder}: no step was accepted in this run, so it tells nothing "
                         "of its machines; give one that has trained")
    batch = round(median(one["samples"] / one["steps"] for some in pushes.values()
                         for one in some))
    unknown = []
    model_bytes = _model_bytes(run)
    if model_bytes is None:
        unknown.append("the bytes of its model: it has no checkpoint; give --model_bytes, such as "
                       "20MB; here transfers take no time")
    groups, same = [], True
    for worker in sorted(pushes):
        up, down = _links(run, worker, model_bytes)
        group, told = _group(pushes[worker], batch)
        same &= not told
        groups.append(Group(**group, up=up, down=down))
    if same:
        unknown.append(f"how the time of a step follows its batch: all steps had {batch} examples, "
                       "so smaller ones are taken to need less time in proportion; steps of "
                       "another batch would tell")
    if untold := [worker for worker in sorted(pushes) if not run.spans.get(worker)]:
        unknown.append(f"the transfers of worker {', '.join(map(str, untold))}: no timeline of "
                       "theirs is in the folder; here they take no time")
    if len(untold) < len(pushes):
        unknown.append("bandwidth, latency and the server's time apart: a push and a fetch take "
                       "their median seconds, however many are on their way at once")
    if any(event["kind"] in ("lost", "leave") and event["t"] < 0.9 * run.events[-1]["t"]
           for event in run.events):
        unknown.append("how it is without the losses and departures of this run: here all workers "
                       "are there from the begin to the end")
    noise = (run.summary or {}).get("noise")
    scale = noise["scale"] / batch if noise else None
    if scale is None:
        unknown.append("the noise of the gradients, which is measured for plain SGD alone: a "
                       "mini-batch is taken to count as much under every model, which flatters "
                       "large clusters")
    curve, loss = _curve(run)
    if not curve:
        unknown.append("its loss: it has neither evaluations nor losses of steps, so models are "
                       "compared by their mini-batches")
    unknown.append("what staleness costs: only a training shows it")
    cluster = ClusterSpec(tuple(groups), model_bytes=model_bytes or 0.0, batch_size=batch)
    return Recorded(run, cluster, batch, scale, tuple(curve), loss,
                    _useful(run, scale), tuple(unknown))


def predicted(found: Recorded, compared: Sequence[tuple[Variant, Plan]], seed: int,
              target: float | None) -> str:
    """Return the models by their predicted times to a loss of the run, in Markdown.

    Args:
        found: the run.
        compared: models, and the plan of each on the run's cluster.
        seed: of the runs that measure their paces.
        target: loss; None: the least one of the run.

    Raises:
        ValueError: the run has not come to this loss; one line.
    """
    point = found.reached(target)
    if target is not None and point is None:
        best = min((loss for _, _, loss in found.curve), default=None)
        raise ValueError(f"--target=loss:{target:g}: the run {found.run.folder} "
                         + ("has no losses" if best is None else
                            f"came to {found.loss} {best:.4g} only") + "; give a higher loss")
    paces = {variant.label: screen(variant, plan, seed) for variant, plan in compared}
    alone = worth.fastest(found.cluster, 1).pace
    goodput = {label: pace.goodput(found.noise) for label, pace in paces.items()}
    if point is None:
        return _by_pace(found, paces, goodput, alone)
    seconds, steps, loss = point
    needed = steps * found.useful
    times = {label: needed / rate for label, rate in goodput.items() if rate}
    best_label = min(times, key=lambda label: times[label])
    goal = f"to {found.loss} {loss:.4g}"
    lone = needed / alone
    ratio = lone / times[best_label]
    said = [
        f"predicted from a run of {found.cluster.size} workers, {steps:,} steps of {found.batch} "
        f"examples under {found.run.settings['sync']}; nothing was trained",
        ("it pays" if ratio >= worth.PAYS else "it does not pay") +
        f": {best_label} takes {_time(times[best_label])} {goal}, the fastest machine alone "
        f"{_time(lone)}" + ("" if found.noise is not None else " at most")
        + f"; the run took {_time(seconds)}"]
    rows = [[label, f"{times[label]:,.1f}", f"{paces[label].rate:,.1f}",
             f"{goodput[label] / paces[label].rate:.0%}"]
            for label in sorted(times, key=lambda one: times[one])]
    rows.append(["the fastest machine alone", f"{lone:,.1f}", f"{alone:,.1f}", "100%"])
    head = ["model", f"seconds {goal}", "mini-batches/s", "of which count"]
    columns = 4 if found.noise is not None else 3
    return "\n".join([*said, "", markdown(head[:columns], [row[:columns] for row in rows]), "",
                      _untold(found)])


def _by_pace(found: Recorded, paces: dict[str, Screened], goodput: dict[str, float],
             alone: float) -> str:
    rows = [[label, f"{paces[label].rate:,.1f}"]
            for label in sorted(paces, key=lambda one: -goodput[one])]
    rows.append(["the fastest machine alone", f"{alone:,.1f}"])
    return "\n".join([markdown(["model", "mini-batches/s"], rows), "", _untold(found)])


def _untold(found: Recorded) -> str:
    return "\n".join(["The run does not tell:", "", *(f"- {one}" for one in found.unknown)])


def _group(pushes: list[dict[str, Any]], batch: int) -> tuple[dict[str, Any], bool]:
    """Return a worker's step times, as fields of a `Group`, and whether they show a law."""
    if len(pushes) > 10:
        pushes = pushes[1:]  # the first step may compile
    steps = [(one["samples"] / one["steps"], one["seconds"] / one["steps"]) for one in pushes
             for _ in range(min(one["steps"], MOST))][-MOST:]
    sizes = [size for size, _ in steps]
    if max(sizes) < DIFFERENT * min(sizes):
        return {"trace": tuple(seconds * batch / size for size, seconds in steps)}, False
    law = law_of(steps)
    ratios = [math.log(seconds / law.seconds(round(size))) for size, seconds in steps if seconds]
    mean = sum(ratios) / len(ratios)
    return {"step_seconds": law.seconds(batch), "fixed_seconds": law.fixed,
            "example_seconds": law.example,
            "jitter": math.sqrt(sum((one - mean) ** 2 for one in ratios) / len(ratios))}, True


def _links(run: Run, worker: int, model_bytes: float | None) -> tuple[float, float]:
    """Return the bytes/s of a worker's pushes and fetches, without a limit where not known."""
    wire = parse(run.settings.get("wire", "float32"))
    size = Payload(model_bytes or 0.0, wire).update
    found = []
    for kind in ("push", "pull"):
        took = [span["seconds"] for span in run.spans.get(worker, [])
                if (span["lane"], span["kind"]) == ("network", kind)]
        typical = median(took) if took else 0.0
        found.append(size / typical if typical and size else math.inf)
    return found[0], found[1]


def _model_bytes(run: Run) -> float | None:
    """Return the bytes of a version as float32: of the settings, or else of the checkpoint."""
    if given := run.settings.get("model_bytes"):
        return float(given)
    path = Path(run.folder) / "checkpoint.safetensors"
    try:
        with path.open("rb") as file:
            head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return float(sum(4 * math.prod(one["shape"]) for name, one in head.items()
                         if re.match(r"\d+/", name) and one["dtype"] in _FLOATS)) or None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _curve(run: Run) -> tuple[list[tuple[float, int, float]], str]:
    """Return the curve of the evaluations, or else of the steps, and what it is of."""
    for kind, name in (("evaluation", "loss"), ("training", "training loss")):
        found = [(event["t"], event["steps"], event["loss"]) for event in run.events
                 if event["kind"] == kind and event["steps"]
                 and event.get("loss") is not None and math.isfinite(event["loss"])]
        if found:
            return found, name
    return [], "loss"


def _useful(run: Run, noise: float | None) -> float:
    """Return the part of the examples that counted, 0..1; `noise`: its scale in batches."""
    if noise is None:
        return 1.0
    pushes: list[Pushed] = []
    useful = whole = 0.0
    for event in run.events:
        if event["kind"] == "accept":
            pushes.append(Pushed(event["weight"], event["steps"], event["samples"], 0.0))
        elif event["kind"] == "commit" and pushes:
            sums = sums_of(pushes)
            useful += sums.samples * (noise + 1) / (noise + sums.width)
            whole += sums.samples
            pushes.clear()
    return useful / whole if whole else 1.0


def _time(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 10 else f"{seconds:.3g} s"
