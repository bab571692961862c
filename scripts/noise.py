#!/usr/bin/env python
"""The noise scale that a run measures live, beside the one that a lone worker's trainings give.

    scripts/noise.py --data_dir=DIR           # both tables of docs/explanation/noise-scale.md
    scripts/noise.py --data_dir=DIR --live=bsp-8-64,bsp-4-32

The network `small` on CIFAR-10 in virtual time, plain SGD, a constant rate, 20 ms a step of 128
examples, no network. *Fitted*: S(b), the steps of a lone worker to a quality at batch b, each at
the best of some rates; B is what fits S(b) = S_min (1 + B / b) best in the logarithm (McCandlish et
al. 2018). *Live*: what the log of a run says at the look at which it reaches the quality. A
quality is reached when the mean of three looks in a row, at 2,000 test images, is there. Finished
runs are kept in --out.
"""

import json
import math
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
from absl import app, flags

from wbsp.figures.table import markdown
from wbsp.simulate.study.progress import Progress
from wbsp.simulate.study.runs import Plan, simulate
from wbsp.simulate.study.spec import ClusterSpec, Group
from wbsp.sync import MODELS

FLAGS = flags.FLAGS
QUALITIES = (0.45, 0.50, 0.55)
LONE = {16: (0.025, 0.05), 32: (0.05, 0.1), 64: (0.05, 0.1, 0.2), 128: (0.1, 0.2),
        256: (0.2, 0.4), 512: (0.2, 0.4)}  # batch -> rates
LIVE = "bsp-2-64", "bsp-8-32", "bsp-8-64", "bsp-8-128"  # model, workers, batch
RATE = 0.1  # of these at batch 64; in proportion to the batch

flags.DEFINE_list("live", list(LIVE), "runs whose live noise scale is shown: model-workers-batch")
flags.DEFINE_string("data_dir", None, "where CIFAR-10 lies, as for runcifar10gpu.py")
flags.DEFINE_string("out", "runs/noise", "folder of the runs")


def train(name: str, sync: str, workers: int, batch: int, rate: float) -> list[dict]:
    """Return the evaluations of this run, which is made unless it exists."""
    folder = pathlib.Path(FLAGS.out).absolute() / name
    if not (folder / "summary.json").exists():
        from wbsp.simulate.workloads.keras import Experiment

        seconds = 0.02 * batch / 128
        plan = Plan(ClusterSpec((Group(count=workers, step_seconds=seconds),)),
                    Experiment("small", "cifar10", batch, rate, FLAGS.data_dir, 2000, {}), batch,
                    stop_samples=600_000, check_period=max(40, 5000 // batch) * seconds,
                    target=QUALITIES[-1] + 0.02)
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.iterdir():  # of a run that was stopped
            left.unlink()
        simulate(plan, MODELS[sync], {}, 0, folder, Progress())
    lines = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [event for event in lines if event["kind"] == "evaluation"]


def reached(looks: list[dict], quality: float) -> dict | None:
    """Return the first look with this mean accuracy of three; None: there is none."""
    return next((looks[i] for i in range(2, len(looks))
                 if sum(look["accuracy"] for look in looks[i - 2:i + 1]) >= 3 * quality), None)


def fitted(steps: dict[int, int]) -> tuple[float, float]:
    """Return B of batch -> steps, and the largest deviation of the fit, as a ratio."""
    def deviations(scale: float) -> list[float]:
        logs = [math.log(count / (1 + scale / batch)) for batch, count in steps.items()]
        middle = sum(logs) / len(logs)
        return [one - middle for one in logs]

    best = min((10 * 1.02**i for i in range(400)),
               key=lambda scale: sum(one * one for one in deviations(scale)))
    return best, math.exp(max(map(abs, deviations(best))))


def main(argv):
    from wbsp.simulate.workloads.keras import make_deterministic

    make_deterministic()
    lone = {(batch, rate): train(f"lone-{batch}-{rate}", "bsp", 1, batch, rate)
            for batch, rates in LONE.items() for rate in rates}
    heads = [f"{100 * quality:.0f} %" for quality in QUALITIES]
    steps: dict[float, dict[int, int]] = {quality: {} for quality in QUALITIES}
    for batch, rates in LONE.items():
        for quality in QUALITIES:
            found = [look["steps"] for rate in rates
                     if (look := reached(lone[batch, rate], quality))]
            if found:
                steps[quality][batch] = min(found)
    fits = {quality: fitted(steps[quality]) for quality in QUALITIES}
    rows = [[f"batch {batch}", *(str(steps[one].get(batch, "-")) for one in QUALITIES)]
            for batch in LONE]
    rows.append(["B, fitted (largest deviation)",
                 *(f"{scale:.0f} ({ratio:.2f})" for scale, ratio in fits.values())])
    print(markdown(["lone worker, steps to", *heads], rows), flush=True)
    rows = []
    for name in FLAGS.live:
        sync, workers, batch = name.split("-")
        looks = train(name, sync, int(workers), int(batch), RATE * int(batch) / 64)
        cells = []
        for quality in QUALITIES:
            look = reached(looks, quality)
            scale = look and look.get("noise", {}).get("scale")
            cells.append(f"{scale:.0f} ({scale / fits[quality][0]:.2f})" if scale else "-")
        rows.append([name, *cells])
    print("", markdown(["live B (ratio to the fitted)", *heads], rows), sep="\n")


if __name__ == "__main__":
    app.run(main)
