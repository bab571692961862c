#!/usr/bin/env python
"""What two processes on this machine are worth, with a core each, beside one alone.

    lab/real_worth.py --data_dir=DIR --out=runs/real-worth

trains `small` on CIFAR-10 with real processes under `auto`: one machine alone, which then waits
for nothing, two equal ones, and two of which one sleeps as long before each step as it takes.
Server and evaluator run on the same two cores. Then the same in virtual time, where a step takes
what that very worker's steps took, one by one, and a push or a fetch what it took on average. A
quality is reached when the mean of three looks in a row is there, a look a second. A run that is in
--out is not repeated. The machine should have nothing else to do while the real ones train.
"""

import os
import pathlib
import statistics
import sys
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
from absl import flags
from reproduction.command import run_command
from reproduction.looks import reached
from reproduction.real import finished, measured, train, twin

from wbsp import command
from wbsp.figures.table import markdown
from wbsp.process.imports import heavy_imports
from wbsp.runlog.folder import run_folder
from wbsp.runlog.reader import Run, read_run
from wbsp.simulate.study.runs import Plan

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))  # data and models

FLAGS = flags.FLAGS
LOOK = 1.0  # seconds between two


class Case(NamedTuple):
    """One machine, or two, under `auto`, where one alone waits for nothing; rates are constant."""

    title: str
    batch: int
    rate: float
    optimizer: str
    workers: int
    slow: bool = False  # the second sleeps


OPTIMIZERS = {"sgd": "plain SGD", "nesterov": "Nesterov's momentum"}


def cases(title: str, workers: int, settings: list[tuple[int, float, str]],
          slow: bool = False) -> list[Case]:
    return [Case(f"{title}, batch {batch}, {OPTIMIZERS[kind]}, rate {rate:g}", batch, rate, kind,
                 workers, slow) for batch, rate, kind in settings]


TWO = [(32, 0.05, "sgd"), (32, 0.00875, "nesterov"), (64, 0.0175, "nesterov")]
ALONE = cases("one alone", 1, [(64, 0.0175, "nesterov"), (64, 0.00875, "nesterov")])
EQUAL, UNEQUAL = cases("two equal", 2, TWO), cases("two at 1:2", 2, TWO, slow=True)

flags.DEFINE_float("quality", 0.6, "accuracy that counts", lower_bound=0, upper_bound=1)
flags.DEFINE_integer("runs", 3, "of each, with seeds 0, 1, ...", lower_bound=1)
flags.DEFINE_float("epochs", 6, "length of each, in passes over the training set", lower_bound=0)
flags.DEFINE_integer("test_images", 2000, "images of the test set in an evaluation", lower_bound=1)
flags.DEFINE_string("data_dir", None, "where CIFAR-10 lies, as for runcifar10gpu.py")
flags.DEFINE_string("out", "runs/real-worth", "folder of the runs")


def main(argv):
    return run_command("real_worth", run, argv)


def run() -> int:
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        raise OSError("two cores are needed, and a system that can give one to a process (Linux)")
    real = {case: [really(case, seed) for seed in range(FLAGS.runs)]
            for case in (*ALONE, *EQUAL)}
    real |= {case: [really(case, seed, step_seconds(real[equal])) for seed in range(FLAGS.runs)]
             for case, equal in zip(UNEQUAL, EQUAL, strict=True)}
    with heavy_imports():
        from wbsp.simulate.workloads.keras import make_deterministic

        make_deterministic()
    virtual = {case: [again(run, case, seed) for seed, run in enumerate(runs)]
               for case, runs in real.items()}
    print(table(real, virtual))
    return 0


def folder(kind: str, case: Case, seed: int) -> pathlib.Path:
    machines = "alone" if case.workers == 1 else "1-2" if case.slow else "equal"
    name = f"{machines}-{case.optimizer}-{case.batch}-{case.rate:g}"
    return pathlib.Path(FLAGS.out).absolute() / kind / name / f"seed-{seed}"


def really(case: Case, seed: int, sleep: float = 0.0) -> Run:
    """Return the run with real processes; make it unless it was made before."""
    base = folder("real", case, seed)
    if done := finished(base):
        return done
    base.mkdir(parents=True, exist_ok=True)
    print(f"{case.title}, seed {seed} ...", file=sys.stderr, flush=True)
    data = [f"--data_dir={FLAGS.data_dir}"] if FLAGS.data_dir else []
    server = ["--sync=auto", "--model=small", f"--optimizer={case.optimizer}",
              f"--lr={case.rate}", f"--epochs={FLAGS.epochs}", f"--seed={seed}",
              "--heterogeneity=none", f"--check_period={LOOK}",
              f"--test_images={FLAGS.test_images}", *data]
    sleeps = [0.0, sleep] if case.slow else [0.0] * case.workers
    codes = train(base, server, [[f"--batch_size={case.batch}", f"--sleep_time={seconds}", *data]
                                 for seconds in sleeps], cores=True)
    if any(codes):
        raise SystemExit(f"{case.title}, seed {seed}: exit codes {codes}; see {base}/*.log")
    return read_run(run_folder(base, resume=True))


def step_seconds(runs: list[Run]) -> float:
    """Return the seconds that a worker of these runs has taken for a step, all included."""
    totals = [run.summary["total"] for run in runs]
    return statistics.mean(total["wall_seconds"] / total["steps"] for total in totals)


def again(run: Run, case: Case, seed: int) -> Run:
    """Return the real `run` in virtual time; simulate it unless that was done before."""
    from wbsp.simulate.workloads.keras import Experiment

    def plan() -> Plan:
        experiment = Experiment("small", "cifar10", case.batch, case.rate, FLAGS.data_dir,
                                FLAGS.test_images, optimizer=case.optimizer)
        return Plan(measured(run, experiment.model_bytes), experiment, case.batch,
                    FLAGS.epochs * experiment.size, check_period=LOOK)

    return twin(run, folder("virtual", case, seed), seed, f"{case.title}, seed {seed},", plan)


def time_to(run: Run) -> float | None:
    """Return the seconds until --quality was reached; None: never."""
    seen = run.evaluations
    return reached(list(zip(seen.t.tolist(), seen.accuracy.tolist(), strict=True)), FLAGS.quality)


def speed(runs: list[Run]) -> float:
    """Return the examples/s of all workers together."""
    return statistics.mean(
        run.summary["total"]["samples"] / max(event["t"] for event in run.events) for run in runs)


def table(*kinds: dict[Case, list[Run]]) -> str:
    """Return a Markdown table: real, then virtual."""
    rows = {case: [case.title] for case in kinds[0]}
    for kind in kinds:
        seconds = {case: [time_to(run) for run in runs] for case, runs in kind.items()}
        means = {case: statistics.mean(found) for case, found in seconds.items()
                 if None not in found}
        alone = min((means[case] for case in ALONE if case in means), default=None)
        fastest = max(speed(kind[case]) for case in ALONE)
        for case, found in seconds.items():
            rows[case] += [
                f"{speed(kind[case]):,.0f} ({speed(kind[case]) / fastest:.2f})",
                ", ".join("-" if at is None else f"{at:.1f}" for at in found),
                f"{alone / means[case]:.2f}" if alone and case in means else "-"]
    quality = f"seconds to {100 * FLAGS.quality:g} %"
    return markdown(["", *(f"{kind}: {column}" for kind in ("real", "virtual")
                           for column in ("examples/s (of the lone)", quality, "worth"))],
                    list(rows.values()))


if __name__ == "__main__":
    command.run(main, "real_worth", __doc__)
