"""One run of an entry in a cell: its curve, as a CSV file with the command and the commit."""

from __future__ import annotations

import bisect
import csv
import functools
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rivals.cells import Cell
from rivals.entries import Rival, rival
from rivals.ground import Ground, Look, Nothing, Part
from wbsp.core.messages import SharedData
from wbsp.simulate.study.progress import Progress
from wbsp.simulate.study.runs import Plan, make_cluster, outer_step, simulate, step_size
from wbsp.simulate.study.variants import Variant, variants
from wbsp.simulate.workloads.base import TimingWorkload, of_experiment
from wbsp.simulate.workloads.gpt import experiment
from wbsp.simulate.workloads.task import TaskExperiment

LOOKS = 40  # of a run
MODEL = "gpt"
EMBEDDINGS = {"bytes", "positions"}
ENDLESS = 1000  # epochs of shared data: a run ends by its time


class Setting(NamedTuple):
    """What is swept.

    Attributes:
        batch: examples of a worker's step.
        lr: the highest learning rate.
        options: of AdamW, such as "beta1=0".
    """

    batch: int
    lr: float
    options: tuple[str, ...] = ()

    @property
    def optimizer(self) -> str:
        """The text of the optimizer."""
        return ":".join(["adamw", *self.options])

    def __str__(self) -> str:
        return ":".join([f"batch={self.batch}", f"lr={self.lr:g}", *self.options])


def setting(text: str) -> Setting:
    """Return the setting of "batch=2:lr=1.4e-3:beta1=0".

    Raises:
        ValueError: it has another form, or an option is bad; one line.
    """
    found = dict(pair.partition("=")[::2] for pair in text.split(":"))
    try:
        batch, lr = int(found.pop("batch")), float(found.pop("lr"))
        if batch < 1 or not 0 < lr < float("inf"):
            raise ValueError
    except (KeyError, ValueError):
        raise ValueError(f"{text!r} is no setting; write batch=2:lr=1.4e-3, and options of AdamW "
                         "such as beta1=0") from None
    one = Setting(batch, lr, tuple(f"{key}={value}" for key, value in found.items()))
    of_experiment("models.adamw").checked(one.optimizer)
    return one


class Training(NamedTuple):
    """A run that is wanted.

    Attributes:
        cell: where.
        entry: a rival or a model of wbsp's, with options.
        setting: of the training.
        seconds: virtual, at which it ends.
        seed: of W_0, the order of examples, and the step times.
        model: the network.
    """

    cell: Cell
    entry: str
    setting: Setting
    seconds: float
    seed: int
    model: str = MODEL

    @property
    def place(self) -> str:
        """The cell's name, or that of a lone machine, which cells share."""
        if not _is_alone(self.entry):
            return self.cell.name
        return "alone" + (f"-{self.cell.law}" if self.cell.law else "")

    @property
    def path(self) -> Path:
        """Of its file, below the folder of all."""
        run = f"{self.seconds:g}s-seed{self.seed}.csv"
        parts = [self.place, self.entry, str(self.setting), run]
        if self.model != MODEL:
            parts.insert(0, self.model)
        return Path(*(re.sub(r"[^\w.=-]", "_", part) for part in parts))


def _is_alone(entry: str) -> bool:
    found = rival(entry)
    return found is not None and found.alone


def read(path: Path) -> list[Look] | None:
    """Return the looks of a finished run; None: there is none."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return [Look(float(row["seconds"]), int(row["examples"]), float(row["loss"]))
                for row in rows]


def said(path: Path) -> dict[str, str]:
    """Return what the head of a run's file says of it."""
    with path.open(encoding="utf-8") as file:
        heads = [line[2:].rstrip("\n").partition(": ") for line in file if line.startswith("# ")]
    return {key: value for key, _, value in heads}


def write(path: Path, one: Training, looks: Sequence[Look], took: float) -> None:
    """Write a run's file as a whole, so that a run that is cut off leaves none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"command": shlex.join(["lab/lm.py", *sys.argv[1:]]), "commit": commit(),
            "cell": one.place, "entry": one.entry, "setting": one.setting,
            "seconds": f"{one.seconds:g}", "seed": one.seed, "model": one.model,
            "text": of_experiment("data.stdlib").text().name, "took": f"{took:.0f} s"}
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="") as file:
        for key, value in head.items():
            file.write(f"# {key}: {value}\n")
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(Look._fields)
        rows.writerows((f"{look.seconds:.6g}", look.examples, f"{look.loss:.6g}") for look in looks)
    part.replace(path)


@functools.cache
def commit() -> str:
    """Return the commit of this checkout, with "+" where it was changed since."""
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(Path(__file__).parent), *words],
                              capture_output=True, text=True)
        return done.stdout.strip()

    found = git("rev-parse", "--short=10", "HEAD")
    return (found or "unknown") + ("+" if git("status", "--porcelain", "-uno") else "")


def train(one: Training) -> list[Look]:
    """Make the run, and return its looks.

    Its length is in seconds, and its schedule follows its examples, so these are counted first, by
    the same run without tensors.

    Raises:
        ValueError: an option is bad; one line.
    """
    trained = _experiment(one.model, one.setting)
    samples = examples(one)
    if not samples:  # no round ends in that time
        return [Look(0.0, 0, trained.task.evaluate(trained.task.make(one.seed)[0])["loss"])]
    found = rival(one.entry)
    if found is not None:
        ground, means = _ground(one, found, task=trained.task, parts=parts(one.model),
                                total=samples, looks=one.seconds / LOOKS,
                                rate=lambda done: trained.rate * trained.schedule(done))
        found.run(ground, means)
        return ground.found
    plan, variant = _plan(one)
    with tempfile.TemporaryDirectory() as folder:
        run = simulate(replace(plan, experiment=trained, stop_samples=samples), variant.sync,
                       variant.options, one.seed, Path(folder), _Quiet())
        looks = run.evaluations
        pushed = [(event["t"], event["samples"]) for event in run.events
                  if event["kind"] == "accept"]
    times = [t for t, _ in pushed]
    sums = np.cumsum([0, *(count for _, count in pushed)])
    return [Look(float(t), int(sums[bisect.bisect_right(times, t)]), float(loss))
            for t, loss in zip(looks.t, looks.loss, strict=True)]


def examples(one: Training) -> int:
    """Return the examples of the run, without training it; of a model of wbsp's, those that its
    workers have pushed."""
    found = rival(one.entry)
    if found is not None:
        ground, means = _ground(one, found, task=Nothing())
        found.run(ground, means)
        return ground.examples
    plan, variant = _plan(one)
    batch = step_size(plan, variant.sync, variant.options)
    cluster = make_cluster(plan, variant.sync, variant.options, one.seed, TimingWorkload(batch),
                           outer=outer_step(plan, variant.sync),
                           data=plan.data and plan.data._replace(batch=batch, seed=one.seed))
    cluster.run(one.seconds)
    return int(cluster.engine.samples)


@functools.lru_cache(maxsize=1)
def _experiment(model: str, one: Setting) -> TaskExperiment:
    return experiment(model, "stdlib", one.batch, one.lr, optimizer=one.optimizer)


def parts(model: str) -> list[Part]:
    """Return the tensors of a decoder."""
    gpt, found, begin = of_experiment("models.gpt"), [], 0
    for name, value in gpt.initial(gpt.shape(model), 0).items():
        found.append(Part(name, begin, begin + value.size, name in EMBEDDINGS))
        begin += value.size
    return found


def _bytes(one: Training) -> float:
    return 4 * of_experiment("models.gpt").shape(one.model).parameters * one.cell.bytes


def _ground(one: Training, found: Rival, **more: Any) -> tuple[Ground, list[float]]:
    """Return what a rival trains, with machines that have made no step, and their mean steps."""
    spec = (one.cell.alone if found.alone else one.cell.spec).trains(one.setting.batch)
    ground = Ground(spec.machines(one.seed), batch=one.setting.batch, until=one.seconds,
                    size=_bytes(one), seed=one.seed, server=spec.server, **more)
    return ground, [group.mini_batch for group, _ in spec.places]


def _plan(one: Training) -> tuple[Plan, Variant]:
    """Return the plan of a model of wbsp's, without what is trained.

    Its workers share the data, as in a user's script: `auto` divides no other batch.
    """
    [variant] = variants([one.entry], [])
    spec = replace(one.cell.spec.trains(one.setting.batch), model_bytes=_bytes(one))
    stdlib, form = of_experiment("data.stdlib"), of_experiment("models.gpt").shape(one.model)
    windows = stdlib.size(None, "train", stdlib.Look(form.context))
    plan = Plan(spec, None, one.setting.batch, check_period=one.seconds / LOOKS,
                data=SharedData(windows, one.setting.batch, ENDLESS))
    return plan.of(variant), variant


class _Quiet(Progress):
    """No display."""

    def update(self, now: float, done: float, state: str) -> None:
        pass

    def end(self, now: float, state: str) -> None:
        pass


def timed(one: Training) -> tuple[list[Look], float]:
    """Make the run, and return its looks and the seconds that it took here."""
    began = time.monotonic()
    return train(one), time.monotonic() - began
