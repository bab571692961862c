#!/usr/bin/env python
"""The truth of virtual time: real runs on this machine beside the same runs in virtual time.

    lab/compare_reality.py --out=runs/reality

runs a server and two workers as processes under the published setting H1, for every model, and
then the same in virtual time, where a step takes what that very worker's steps really took, one by
one, and a push or a fetch what it took on average. Prints a Markdown table. A run that is in --out
already is not repeated. The machine should have nothing else to do while the real ones train.

    lab/compare_reality.py --model=cnn --dataset=cifar10 --target_accuracy=0.6 --epochs=20

goes to 60 %, and says how long that took.
"""

import os
import pathlib
import subprocess
import sys

from absl import flags
from reproduction.command import run_command
from reproduction.real import measured, own_work, twin

from wbsp import command, heterogeneity
from wbsp.core.goal import Goal
from wbsp.figures import find_runs
from wbsp.figures.table import markdown
from wbsp.runlog.reader import Run
from wbsp.simulate.study.runs import Plan
from wbsp.simulate.study.variants import Variant, variants

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))  # data and models

FLAGS = flags.FLAGS
REAL = pathlib.Path(__file__).with_name("compare_models.py")
BATCH = 128  # of the launcher's workers

flags.DEFINE_list("sync", ["bsp", "asp", "ssp", "wbsp", "pcc"], "synchronization models, separated "
                  "by commas; pcc:weight=work is a model with an option of its own")
flags.DEFINE_string("model", "small", "network")
flags.DEFINE_string("dataset", "shapes10", "data set")
flags.DEFINE_integer("workers", 2, "workers of each run", lower_bound=1)
flags.DEFINE_enum("heterogeneity", "H1", list(heterogeneity.SLEEPS), heterogeneity.FLAG_HELP)
flags.DEFINE_float("target_accuracy", None, "a run ends when a version reaches it")
flags.DEFINE_float("epochs", 30, "... or after so many passes over the training set, summed over "
                   "all workers")
flags.DEFINE_float("check_period", 5.0, "seconds between two evaluations")
flags.DEFINE_integer("test_images", None, "an evaluation looks at so many images of the test set, "
                     "always the same ones; default: all", lower_bound=1)
flags.DEFINE_float("band_width_limit", None, "MB/s in each direction of each worker's traffic")
flags.DEFINE_string("out", "runs/reality", "folder of the runs")


def main(argv):
    return run_command("compare_reality", run, argv)


def run() -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    real = pathlib.Path(FLAGS.out, "real")
    target = FLAGS.target_accuracy or 1.0  # no version of these networks is right about all images
    made = subprocess.run(
        [sys.executable, REAL, f"--sync={','.join(FLAGS.sync)}", "--seeds=1", f"--out={real}",
         f"--target_accuracy={target}", *(f"--{name}={FLAGS[name].value}" for name in (
             "model", "dataset", "workers", "heterogeneity", "epochs", "check_period",
             "test_images", "band_width_limit") if FLAGS[name].value is not None)],
        stdout=sys.stderr)
    if made.returncode:
        return made.returncode  # it has said why
    from wbsp.simulate.workloads.keras import Experiment, make_deterministic

    make_deterministic()
    experiment = Experiment(FLAGS.model, FLAGS.dataset, BATCH, test_images=FLAGS.test_images)
    done = {run.folder.parent.name: run for run in find_runs([real])}
    pairs = [(variant, done[variant.folder]) for variant in variants(FLAGS.sync, ())]
    print(table([(variant.label, run, again(run, variant, experiment, target))
                 for variant, run in pairs]))
    return 0


def again(run: Run, variant: Variant, experiment, target: float) -> Run:
    """Return the real `run` in virtual time; simulate it unless that was done before."""
    base = pathlib.Path(FLAGS.out, "virtual", variant.folder).absolute()
    return twin(run, base, 0, variant.label, lambda: Plan(
        measured(run, experiment.model_bytes), experiment, BATCH, FLAGS.epochs * experiment.size,
        target=Goal.of(target), check_period=FLAGS.check_period,
        settings={"model": FLAGS.model, "dataset": FLAGS.dataset}))


def table(pairs: list[tuple[str, Run, Run]]) -> str:
    """Return a Markdown table with a row for each model: real / virtual, and the difference."""
    target, rows = FLAGS.target_accuracy, []
    for label, real, virtual in pairs:
        busy = sorted({"compute", *own_work(real)})  # the order decides a sum's last bit
        ends = [duration(run) for run in (real, virtual)]
        shares = [[100 * sum(w["shares"].get(kind, 0.0) for kind in busy) for w in workers(run)]
                  for run in (real, virtual)]
        counts = [[w["steps"] for w in workers(run)] for run in (real, virtual)]
        versions = [run.summary["version"] for run in (real, virtual)]
        accuracy = [100 * run.summary["accuracy"] for run in (real, virtual)]
        rows.append([
            label,
            *([reached(real, virtual, target)] if target else []),
            f"{ends[0]:.1f} / {ends[1]:.1f} ({percent(*ends)})",
            f"{versions[0]:,} / {versions[1]:,} ({percent(*versions)})",
            ", ".join(f"{a:,} / {b:,} ({percent(a, b)})" for a, b in zip(*counts, strict=True)),
            ", ".join(f"{a:.1f} / {b:.1f} ({b - a:+.1f})" for a, b in zip(*shares, strict=True)),
            f"{accuracy[0]:.1f} / {accuracy[1]:.1f} ({accuracy[1] - accuracy[0]:+.1f})"])
    to_target = [f"seconds to {100 * target:g} %"] if target else []
    return markdown(["model", *to_target, "seconds", "versions", "steps of each worker",
                     "busy % of each worker", "final accuracy %"], rows)


def reached(real: Run, virtual: Run, target: float) -> str:
    """When either run was at the target, and the difference where both were."""
    times = [run.time_to(target) for run in (real, virtual)]
    both = " / ".join("-" if time is None else f"{time:.1f}" for time in times)
    return both if None in times else f"{both} ({percent(*times)})"


def duration(run: Run) -> float:
    """Seconds from the start of training, when all workers had joined, to the run's last event."""
    return max(event["t"] for event in run.events)


def workers(run: Run) -> list[dict]:
    """Return the summaries of the workers, by index."""
    return [one for _, one in sorted(run.summary["workers"].items(), key=lambda w: int(w[0]))]


def percent(real: float, virtual: float) -> str:
    return f"{100 * (virtual / real - 1):+.1f} %"


if __name__ == "__main__":
    command.run(main, "compare_reality", __doc__)
