#!/usr/bin/env python
"""The noise scale that a run measures live, beside the one that a lone worker's trainings give.

    lab/noise.py --data_dir=DIR           # the tables of docs/explanation/noise-scale.md
    lab/noise.py --data_dir=DIR --live=bsp-8-64-0.4,bsp-4-32-0.05
    lab/noise.py --data_dir=DIR --falls      # whole trainings
    lab/noise.py --data_dir=DIR --curvature

The network `small` on CIFAR-10 in virtual time, plain SGD, 20 ms a step of 128 examples, no
network. *Fitted*: S(b), the steps of a lone worker to a quality at batch b, the fewest of some
trainings; B is what fits S(b) = S_min (1 + B / b) best in the logarithm (McCandlish et al. 2018). A
quality is reached when the mean of three looks in a row is there; between two such means the steps
are interpolated. The range of B has 90 % of the fits to steps that deviate from this fit at random,
as far as the steps do. *Live*: what the log of a run says at the look at which it reaches the
quality. Its *mean* is over the run until then, weighted by progress: the B that gives the logged
efficiency. Finished runs are kept in --out.

The rate is constant, and a look is at 2,000 test images. --falls: the rate falls to a tenth at 60 %
and to a hundredth at 85 % of the run, the trainings have several lengths, and a look is at all
10,000.

--curvature: tr(S) / |G|^2 and tr(H S) / (G' H G) at points of a training at batch 64, rate 0.1,
with the gradient G of 10,000 examples, 40 gradients of batches, and the Hessian H of 2,000.
"""

import math
import os
import pathlib
import random
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
from absl import flags
from reproduction.command import run_command
from reproduction.looks import reached
from reproduction.trainings import (
    EXAMPLES,
    deterministic,
    empty,
    evaluations,
    falling,
    side_by_side,
)

from wbsp import command
from wbsp.core.goal import Goal
from wbsp.figures.table import markdown
from wbsp.simulate.study.progress import Progress
from wbsp.simulate.study.runs import Plan, simulate
from wbsp.simulate.study.spec import ClusterSpec, Group
from wbsp.sync import find

FLAGS = flags.FLAGS
LONGEST = 12  # epochs of a training at a constant rate
POINTS = 5, 20, 50, 100, 200, 400, 900, 1600  # steps after which the curvature is measured

flags.DEFINE_list("live", None, "runs whose live noise scale is shown: model-workers-batch-rate, "
                  "with -epochs behind it a whole training; default: those of the tables")
flags.DEFINE_bool("falls", False, "whole trainings, whose rate falls")
flags.DEFINE_bool("curvature", False, "show only the noise scale that counts the curvature")
flags.DEFINE_string("data_dir", None, "where CIFAR-10 lies, as for runcifar10gpu.py")
flags.DEFINE_string("out", "runs/noise", "folder of the runs")
flags.DEFINE_integer("jobs", 1, "processes that train at the same time", lower_bound=1)


class Kind(NamedTuple):
    """One kind of trainings."""

    qualities: tuple[float, ...]
    lone: dict[int, tuple[float, ...]]  # batch -> rates
    epochs: dict[int, tuple[int, ...]]  # batch -> lengths, at each rate; {}: `LONGEST`
    live: tuple[str, ...]


CONSTANT = Kind((0.45, 0.50, 0.55),
                {16: (0.025, 0.05), 32: (0.05, 0.1), 64: (0.05, 0.1, 0.2), 128: (0.1, 0.2),
                 256: (0.2, 0.4), 512: (0.2, 0.4)}, {},
                ("bsp-2-64-0.1", "bsp-8-32-0.05", "bsp-8-64-0.1", "bsp-8-128-0.2"))
FALLING = Kind((0.60, 0.62, 0.64, 0.66),
               {16: (0.05,), 32: (0.1,), 64: (0.2,), 128: (0.2, 0.4), 256: (0.4,), 512: (0.4,)},
               {16: (4, 5, 6, 8, 10), 32: (4, 5, 6, 8, 10), 64: (4, 5, 6, 8, 10),
                128: (5, 6, 8, 10, 12), 256: (8, 10, 12, 15, 19), 512: (12, 15, 19, 24, 30)},
               ("bsp-8-16-0.2-10", "bsp-8-32-0.4-12", "bsp-8-64-0.4-19"))


class Run(NamedTuple):
    """A training of equal workers, for which the network costs nothing."""

    folder: pathlib.Path
    sync: str
    workers: int
    batch: int
    rate: float
    epochs: int | None  # None: `LONGEST`, at a constant rate
    target: float  # accuracy at which it ends
    data_dir: str | None


def run_of(name: str, kind: Kind) -> Run:
    """Return the run of a name like those in --live.

    Raises:
        ValueError: it is no such name; one line.
    """
    sync, *numbers = name.split("-")
    find(sync)
    try:
        workers, batch, rate, epochs = numbers if len(numbers) == 4 else [*numbers, 0]
        length = int(epochs) or None
        return Run(pathlib.Path(FLAGS.out).absolute() / name, sync, int(workers), int(batch),
                   float(rate), length, math.inf if length else kind.qualities[-1] + 0.02,
                   FLAGS.data_dir)
    except ValueError:
        raise ValueError(f"--live: {name!r} is not model-workers-batch-rate, such as bsp-8-64-0.1, "
                         "with or without -epochs behind it") from None


def lone_names(kind: Kind, batch: int) -> list[str]:
    """Return the names of a lone worker's trainings at this batch."""
    epochs = kind.epochs.get(batch)
    return [f"bsp-1-{batch}-{rate}" + (f"-{length}" if length else "")
            for rate in kind.lone[batch] for length in epochs or [None]]


def train(run: Run) -> None:
    """Make this run."""
    deterministic()
    from wbsp.simulate.workloads.keras import Experiment

    batch, seconds = run.batch, 0.02 * run.batch / 128
    cluster = ClusterSpec((Group(count=run.workers, step_seconds=seconds),))
    if run.epochs is None:
        decays, images, examples, look = {}, 2000, LONGEST * EXAMPLES, max(40, 5000 // batch)
    else:
        examples = run.epochs * EXAMPLES
        decays = falling(examples // batch // run.workers)
        images, look = 10_000, max(20, 10_000 // batch // run.workers)
    plan = Plan(cluster, Experiment("small", "cifar10", batch, run.rate, run.data_dir, images,
                                    decays),
                batch, stop_samples=examples, check_period=look * seconds,
                target=Goal.of(run.target))
    empty(run.folder)
    progress = Progress()
    progress.begin(run.folder.name)
    simulate(plan, find(run.sync), {}, 0, run.folder, progress)
    progress.close()


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
    return run_command("noise", run, argv)


def run() -> int:
    if FLAGS.curvature:
        deterministic()
        print(markdown(["steps", "tr(S) / G' G", "tr(H S) / G' H G", "ratio"], curvature()))
        return 0
    kind = FALLING if FLAGS.falls else CONSTANT
    names = {batch: lone_names(kind, batch) for batch in kind.lone}
    shown = FLAGS.live or kind.live
    lone = [name for some in names.values() for name in some]
    runs = {name: run_of(name, kind) for name in [*lone, *shown]}
    missing = [one for one in runs.values() if evaluations(one.folder) is None]
    side_by_side(train, missing, FLAGS.jobs)
    looks = {name: evaluations(one.folder) or [] for name, one in runs.items()}
    heads = [f"{100 * quality:.0f} %" for quality in kind.qualities]
    steps: dict[float, dict[int, float]] = {quality: {} for quality in kind.qualities}
    rows = []
    for batch, trainings in names.items():
        row = [f"batch {batch}"]
        for quality in kind.qualities:
            found = [(count, name) for name in trainings
                     if (count := steps_to(looks[name], quality)) is not None]
            if found:
                steps[quality][batch], name = min(found)
                row.append(f"{steps[quality][batch]:.0f} ({name.split('-', 3)[3]})")
            else:
                row.append("-")
        rows.append(row)
    fits = {quality: fitted(steps[quality]) for quality in kind.qualities}
    ranges = [(scale, *spread(steps[quality], scale)) for quality, scale in fits.items()]
    rows.append(["B, fitted (range)", *(f"{scale:.0f} ({low:.0f} to {high:.0f})"
                                        for scale, low, high in ranges)])
    print(markdown(["lone worker, steps to (rate)", *heads], rows), flush=True)
    rows = []
    for name in shown:
        at = {quality: look_at(looks[name], quality) for quality in kind.qualities}
        for what, of in (("", newest_scale), (", mean", mean_scale)):
            scales = [(quality, look and of(look, runs[name].workers))
                      for quality, look in at.items()]
            rows.append([name + what, *(f"{scale:.0f} ({scale / fits[quality]:.2f})" if scale
                                        else "-" for quality, scale in scales)])
    print("", markdown(["live B (ratio to the fitted)", *heads], rows), sep="\n")
    return 0


if __name__ == "__main__":
    command.run(main, "noise", __doc__)
