#!/usr/bin/env python
"""The noise scale that a run measures live, beside the one that a lone worker's trainings give.

    scripts/noise.py --data_dir=DIR           # the tables of docs/explanation/noise-scale.md
    scripts/noise.py --data_dir=DIR --live=bsp-8-64-0.4,bsp-4-32
    scripts/noise.py --data_dir=DIR --curvature

The network `small` on CIFAR-10 in virtual time, plain SGD, a constant rate, 20 ms a step of 128
examples, no network. *Fitted*: S(b), the steps of a lone worker to a quality at batch b, each at
the best of some rates; B is what fits S(b) = S_min (1 + B / b) best in the logarithm (McCandlish et
al. 2018). A quality is reached when the mean of three looks in a row, at 2,000 test images, is
there; between two such means the steps are interpolated. The range of B has 90 % of the fits to
steps that deviate from this fit at random, as far as the steps do. *Live*: what the log of a run
says at the look at which it reaches the quality. Its *mean* is over the run until then, weighted by
progress: the B that gives the logged efficiency. Finished runs are kept in --out.

--curvature: tr(S) / |G|^2 and tr(H S) / (G' H G) at points of a training at batch 64, rate 0.1,
with the gradient G of 10,000 examples, 40 gradients of batches, and the Hessian H of 2,000.
"""

import json
import math
import os
import pathlib
import random

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
from absl import app, flags
from reproduction.looks import reached

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
POINTS = 5, 20, 50, 100, 200, 400, 900, 1600  # steps after which the curvature is measured

flags.DEFINE_list("live", list(LIVE), "runs whose live noise scale is shown: "
                  "model-workers-batch or model-workers-batch-rate")
flags.DEFINE_bool("curvature", False, "show only the noise scale that counts the curvature")
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


def look_at(looks: list[dict], quality: float) -> dict | None:
    """Return the look at which this quality is reached; None: there is none."""
    place = reached([(place, look["accuracy"]) for place, look in enumerate(looks)], quality)
    return None if place is None else looks[int(place)]


def steps_to(looks: list[dict], quality: float) -> float | None:
    """Return the steps at which the mean accuracy of three looks is there; None: it never is."""
    means = [(looks[i]["steps"], sum(look["accuracy"] for look in looks[i - 1:i + 2]) / 3)
             for i in range(1, len(looks) - 1)]
    before = means[0]
    for steps, accuracy in means:
        if accuracy >= quality:
            part = (quality - before[1]) / (accuracy - before[1]) if accuracy > before[1] else 1
            return before[0] + part * (steps - before[0])
        before = steps, accuracy
    return None


def deviations(steps: dict[int, float], scale: float) -> list[float]:
    """Return by how much log(steps) of batch -> steps deviate from those of B = `scale`."""
    logs = [math.log(count / (1 + scale / batch)) for batch, count in steps.items()]
    middle = sum(logs) / len(logs)
    return [one - middle for one in logs]


def fitted(steps: dict[int, float]) -> float:
    """Return B of batch -> steps."""
    return min((10 * 1.02**i for i in range(400)),
               key=lambda scale: sum(one * one for one in deviations(steps, scale)))


def spread(steps: dict[int, float], best: float) -> tuple[float, float]:
    """Return the range of B: of 400 fits to steps that deviate from B = `best` at random."""
    rest = deviations(steps, best)
    sigma, draw = (sum(one * one for one in rest) / (len(rest) - 2)) ** 0.5, random.Random(0)
    found = sorted(fitted({batch: (1 + best / batch) * math.exp(draw.gauss(0, sigma))
                           for batch in steps}) for _ in range(400))
    return found[20], found[-21]


def newest_scale(look: dict, workers: int) -> float | None:
    """Return the B that the log has at this look."""
    return look.get("noise", {}).get("scale")


def mean_scale(look: dict, workers: int) -> float | None:
    """Return the B of the run until this look, from (B + b) / (B + M) = efficiency."""
    noise = look.get("noise")
    if noise is None or noise["efficiency"] >= 1:
        return None
    part, batch = noise["efficiency"], noise["batch"]
    return (part * workers * batch - batch) / (1 - part)


def curvature() -> list[list[str]]:
    """Return a row for each of `POINTS`."""
    import numpy as np
    import tensorflow as tf

    import data
    from models import small

    model, error = small.build(0), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    values = model.trainable_variables

    @tf.function(reduce_retracing=True)
    def gradient(images, labels):
        with tf.GradientTape() as tape:
            loss = error(labels, model(images, training=True))
        return tf.concat([tf.reshape(one, [-1]) for one in tape.gradient(loss, values)], 0)

    @tf.function(reduce_retracing=True)
    def along(images, labels, vector):
        """vector' H vector."""
        with tf.GradientTape() as outer:
            slope = tf.tensordot(gradient(images, labels), vector, 1)
        parts = [tf.reshape(one, [-1]) for one in outer.gradient(slope, values)]
        return tf.tensordot(tf.concat(parts, 0), vector, 1)

    def batches(size, worker):
        return iter(data.train_dataset("cifar10", size, 0, worker, FLAGS.data_dir))

    training, others = batches(64, 0), batches(64, 1)
    known = [next(many) for many in [batches(500, 2)] for _ in range(20)]
    rows = []
    for before, point in zip((0, *POINTS), POINTS, strict=False):
        for _ in range(before, point):
            step, place = -0.1 * gradient(*next(training)), 0
            for one in values:
                size = math.prod(one.shape)
                one.assign_add(tf.reshape(step[place:place + size], one.shape))
                place += size
        whole = tf.add_n([gradient(*batch) for batch in known]) / len(known)
        noises = [gradient(*next(others)) - whole for _ in range(40)]
        bent = [float(np.mean([along(*batch, one) for batch in known[:4]]))
                for one in [*noises, whole]]
        trace = 64 * float(np.mean([tf.tensordot(one, one, 1) for one in noises]))
        curved = 64 * float(np.mean(bent[:-1]))
        # the mean of 10,000 gradients has noise of its own
        plain = trace / (float(tf.tensordot(whole, whole, 1)) - trace / 10_000)
        counted = curved / (bent[-1] - curved / 10_000)
        rows.append([str(point), f"{plain:.0f}", f"{counted:.0f}", f"{counted / plain:.2f}"])
    return rows


def main(argv):
    from wbsp.simulate.workloads.keras import make_deterministic

    make_deterministic()
    if FLAGS.curvature:
        print(markdown(["steps", "tr(S) / G' G", "tr(H S) / G' H G", "ratio"], curvature()))
        return
    lone = {(batch, rate): train(f"lone-{batch}-{rate}", "bsp", 1, batch, rate)
            for batch, rates in LONE.items() for rate in rates}
    heads = [f"{100 * quality:.0f} %" for quality in QUALITIES]
    steps: dict[float, dict[int, float]] = {quality: {} for quality in QUALITIES}
    for batch, rates in LONE.items():
        for quality in QUALITIES:
            found = [count for rate in rates
                     if (count := steps_to(lone[batch, rate], quality)) is not None]
            if found:
                steps[quality][batch] = min(found)
    fits = {quality: fitted(steps[quality]) for quality in QUALITIES}
    rows = [[f"batch {batch}", *(f"{steps[one].get(batch, math.nan):.0f}" for one in QUALITIES)]
            for batch in LONE]
    cells = []
    for quality, scale in fits.items():
        low, high = spread(steps[quality], scale)
        cells.append(f"{scale:.0f} ({low:.0f} to {high:.0f})")
    rows.append(["B, fitted (range)", *cells])
    print(markdown(["lone worker, steps to", *heads], rows), flush=True)
    rows = []
    for name in FLAGS.live:
        sync, workers, batch, *rate = name.split("-")
        looks = train(name, sync, int(workers), int(batch),
                      float(rate[0]) if rate else RATE * int(batch) / 64)
        found = {quality: look_at(looks, quality) for quality in QUALITIES}
        for what, of in (("", newest_scale), (", mean", mean_scale)):
            scales = [(quality, look and of(look, int(workers))) for quality, look in found.items()]
            rows.append([name + what, *(f"{scale:.0f} ({scale / fits[quality]:.2f})" if scale
                                        else "-" for quality, scale in scales)])
    print("", markdown(["live B (ratio to the fitted)", *heads], rows), sep="\n")


if __name__ == "__main__":
    app.run(main)
