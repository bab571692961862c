"""One run of an entry in a cell: its curve, as a CSV file with the command and the commit."""

from __future__ import annotations

import csv
import functools
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rivals.cells import Cell
from rivals.entries import Rival, rival
from rivals.ground import Ground, Look, Nothing, Part
from wbsp.simulate.study.progress import Progress
from wbsp.simulate.study.runs import Plan, make_cluster, outer_step, simulate, step_size
from wbsp.simulate.study.spec import ClusterSpec
from wbsp.simulate.study.variants import Variant, variants
from wbsp.simulate.workloads.base import TimingWorkload, of_experiment
from wbsp.simulate.workloads.gpt import experiment
from wbsp.simulate.workloads.task import TaskExperiment
from wbsp.sync.base import SyncModel

LOOKS = 40  # of a run
MODEL = "gpt"
EMBEDDINGS = {"bytes", "positions"}


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
    def path(self) -> Path:
        """Of its file, below the folder of all."""
        place = self.cell.name
        if _is_alone(self.entry):  # cells share it
            place = "alone" + (f"-{self.cell.law}" if self.cell.law else "")
        parts = [place, self.entry, str(self.setting), f"{self.seconds:g}s-seed{self.seed}.csv"]
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


def write(path: Path, one: Training, looks: Sequence[Look], took: float) -> None:
    """Write a run's file as a whole, so that a run that is cut off leaves none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    said = {"command": shlex.join(["lab/lm.py", *sys.argv[1:]]), "commit": commit(),
            "cell": one.cell.name, "entry": one.entry, "setting": one.setting,
            "seconds": f"{one.seconds:g}", "seed": one.seed, "model": one.model,
            "text": of_experiment("data.stdlib").text().name, "took": f"{took:.0f} s"}
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="") as file:
        for key, value in said.items():
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
    found, trained = rival(one.entry), _experiment(one.model, one.setting)
    if found is not None:
        return _of_rival(one, found, trained)
    [variant] = variants([one.entry], [])
    return _of_model(one, variant, trained)


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


def _of_rival(one: Training, found: Rival, trained: TaskExperiment) -> list[Look]:
    spec = (one.cell.alone if found.alone else one.cell.spec).trains(one.setting.batch)
    means = [group.mini_batch for group, _ in spec.places]
    size = trained.model_bytes * one.cell.bytes

    def ground(**more: Any) -> Ground:
        return Ground(spec.machines(one.seed), batch=one.setting.batch, until=one.seconds,
                      size=size, seed=one.seed, server=spec.server, **more)

    counted = ground(task=Nothing())
    found.run(counted, means)
    full = ground(task=trained.task, parts=parts(one.model), total=max(1, counted.examples),
                  rate=lambda done: trained.rate * trained.schedule(done),
                  looks=one.seconds / LOOKS)
    found.run(full, means)
    return full.found


def _of_model(one: Training, variant: Variant, trained: TaskExperiment) -> list[Look]:
    spec = one.cell.spec.trains(one.setting.batch)
    spec = ClusterSpec(spec.groups, spec.server, trained.model_bytes * one.cell.bytes,
                       spec.batch_size)
    plan = Plan(spec, None, one.setting.batch, check_period=one.seconds / LOOKS).of(variant)
    samples = examples(plan, variant.sync, variant.options, one.seed, one.seconds)
    if not samples:  # no update has arrived by then
        loss = trained.task.evaluate(trained.task.make(one.seed)[0])["loss"]
        return [Look(0.0, 0, loss)]
    with tempfile.TemporaryDirectory() as folder:
        run = simulate(Plan(**{**vars(plan), "experiment": trained, "stop_samples": samples}),
                       variant.sync, variant.options, one.seed, Path(folder), _Quiet())
        found = run.evaluations
    return [Look(float(t), int(steps) * one.setting.batch, float(loss))
            for t, steps, loss in zip(found.t, found.steps, found.loss, strict=True)]


def examples(plan: Plan, sync: type[SyncModel], options: dict[str, Any], seed: int,
             seconds: float) -> int:
    """Return the examples that a model's workers have pushed after so many seconds."""
    cluster = make_cluster(plan, sync, options, seed,
                           TimingWorkload(step_size(plan, sync, options)),
                           outer=outer_step(plan, sync))
    cluster.run(seconds)
    return int(cluster.engine.samples)


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
