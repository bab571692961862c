#!/usr/bin/env python
"""What a cluster is worth: the time in which the best single machine has a model of a stated
quality, divided by the cluster's.

    scripts/worth.py --data_dir=DIR                        # all cells, all models, one seed
    scripts/worth.py --cells=h1-8,pair --models=auto,pcc   # some of them, beside the lone machine
    scripts/worth.py --table                               # only print the tables

Whole trainings of the network `small` on CIFAR-10 in virtual time: the rate falls to a tenth at
60 %, and to a hundredth at 85 % of the run. A quality is reached when the mean of three looks in a
row, at 2,000 test images, is there. For each quality the best of several trainings counts: of the
lone machine over batch, rate and length, of a cluster, at batch 32, over --epochs and --rates.
Finished runs are kept in --out.
"""

import dataclasses
import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
from absl import app, flags

from wbsp.simulate.study.cluster_file import read_cluster
from wbsp.simulate.study.progress import Progress
from wbsp.simulate.study.runs import Plan, simulate
from wbsp.simulate.study.spec import ClusterSpec
from wbsp.simulate.study.worth import fastest, lone
from wbsp.sync import MODELS

FLAGS = flags.FLAGS
QUALITIES = (0.60, 0.62, 0.64, 0.66, 0.68)
EXAMPLES = 50_000  # of an epoch
LOOK = 0.5  # seconds between two
DILOCO = {"outer": "nesterov", "wire": "int8"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A model with its options, and what goes with it."""

    sync: str
    options: dict
    plan: dict
    fast_alone: bool = False  # the machines of the cell that are as fast as its fastest


CELLS = ("equal-8", "h1-8", "mixed-8", "pair")
RIVALS = {
    "auto": Entry("auto", {}, {}),
    "auto-fast-alone": Entry("auto", {}, {}, fast_alone=True),
    "bsp-nesterov-int8": Entry("bsp", {}, DILOCO),
    "localsgd-8-nesterov-int8": Entry("localsgd", {"tau": 8}, DILOCO),
    "pcc-nesterov-int8": Entry("pcc", {}, DILOCO),
    "pcc": Entry("pcc", {}, {}),
    "asp-overlap-int8": Entry("asp", {"overlap": True}, {"wire": "int8"}),
    "bsp-int8": Entry("bsp", {}, {"wire": "int8"}),
    "localsgd-32-nesterov-int8": Entry("localsgd", {"tau": 32}, DILOCO),
    "decoupled-8-nesterov-int8": Entry("decoupled", {"tau": 8}, DILOCO),
    "rennala-int8": Entry("rennala", {}, {"wire": "int8"}),
    "rennala-nesterov-int8": Entry("rennala", {}, DILOCO),
    "ringmaster-int8": Entry("ringmaster", {}, {"wire": "int8"}),
    "msync-nesterov-int8": Entry("msync", {}, DILOCO),
    "fedasync-int8": Entry("fedasync", {}, {"wire": "int8"}),
}
# The lone machine with Nesterov's momentum: (batch, rate, epochs).
LONE = ((64, 0.025, 5), (64, 0.025, 7), (64, 0.025, 10), (128, 0.05, 10))

flags.DEFINE_list("cells", list(CELLS), "cluster files, or names of those that wbsp has")
flags.DEFINE_list("models", list(RIVALS), "models, as the tables name them")
flags.DEFINE_list("epochs", ["10", "20"], "passes of a cluster's trainings")
flags.DEFINE_list("rates", ["0.05"], "and their initial learning rates")
flags.DEFINE_integer("seed", 0, "of all runs")
flags.DEFINE_string("data_dir", None, "where CIFAR-10 lies, as for runcifar10gpu.py")
flags.DEFINE_string("out", "runs/worth", "folder of the runs")
flags.DEFINE_bool("table", False, "train nothing more")


def looks(folder: pathlib.Path) -> list[tuple[float, float]] | None:
    """(virtual seconds, accuracy) of a finished run's evaluations; None: it is not finished."""
    if not (folder / "summary.json").exists():
        return None
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [(event["t"], event["accuracy"]) for event in events if "accuracy" in event]


def reached(run: list[tuple[float, float]], quality: float) -> float | None:
    """Seconds until the mean of three looks in a row was there; None: never."""
    return next((run[i][0] for i in range(2, len(run)) if mean(run[i - 2:i + 1]) >= quality), None)


def mean(run: list[tuple[float, float]]) -> float:
    return sum(accuracy for _, accuracy in run) / len(run)


def train(folder: pathlib.Path, cluster: ClusterSpec, batch: int, rate: float, epochs: int,
          entry: Entry) -> list[tuple[float, float]] | None:
    """Return the looks of this run, which is made unless it is there."""
    if (done := looks(folder)) is not None or FLAGS.table:
        return done
    from wbsp.simulate.workloads.keras import Experiment

    steps = epochs * EXAMPLES // batch // cluster.size  # of the mean worker
    experiment = Experiment("small", "cifar10", batch, rate, FLAGS.data_dir, 2000,
                            {steps * 60 // 100: 0.1, steps * 85 // 100: 0.01})
    plan = Plan(cluster, experiment, batch, stop_samples=epochs * EXAMPLES, check_period=LOOK,
                mean_steps=True, **entry.plan)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():  # of a run that was stopped
        left.unlink()
    simulate(plan, MODELS[entry.sync], entry.options, FLAGS.seed, folder, Progress())
    return looks(folder)


def fast_of(cluster: ClusterSpec) -> ClusterSpec:
    """Return the machines that are as fast as the fastest."""
    least = min(group.mini_batch for group in cluster.groups)
    return fastest(cluster, sum(group.count for group in cluster.groups
                                if group.mini_batch == least))


def ideal(cluster: ClusterSpec) -> float:
    """R: the sum of the speeds, over the fastest's."""
    return cluster.pace / fastest(cluster, 1).pace


def soonest(runs: list[list[tuple[float, float]] | None]) -> dict[float, float | None]:
    """Quality -> seconds until the first of these runs reached it; None: none did."""
    return {quality: min((at for run in runs if run and (at := reached(run, quality))),
                         default=None) for quality in QUALITIES}


def tell(name: str, runs: list[list[tuple[float, float]] | None],
         alone: dict[float, float | None]) -> None:
    """Print a line of the table, if any of these runs is there."""
    if any(runs):
        cells = []
        for quality, at in soonest(runs).items():
            worth = f" ({alone[quality] / at:.1f})" if at and alone[quality] else ""
            cells.append(f"{at:.1f}{worth}" if at else "-")
        end = max(mean(run[-3:]) for run in runs if run)
        print(row(name, [*cells, f"{100 * end:.1f}"]), flush=True)


def row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def main(argv):
    from wbsp.simulate.workloads.keras import make_deterministic

    if unknown := set(FLAGS.models) - RIVALS.keys():
        sys.exit(f"worth.py: --models: there is no {min(unknown)!r}")
    make_deterministic()
    out = pathlib.Path(FLAGS.out).absolute() / f"seed-{FLAGS.seed}"
    head = [*(f"{100 * quality:.0f} %" for quality in QUALITIES), "end"]
    for cell in FLAGS.cells:
        cluster = read_cluster(cell)
        place = out / pathlib.Path(cell).stem
        alone = [train(out / f"lone-{fastest(cluster, 1).pace:g}" / f"{batch}-{rate}-{epochs}",
                       lone(cluster.trains(batch)), batch, rate, epochs,
                       Entry("bsp", {}, {"outer": "nesterov"})) for batch, rate, epochs in LONE]
        trained = cluster.trains(32)
        print(f"\n{cell}: R {ideal(trained):.2f}\n\n" + row("seconds to (worth)", head)
              + "\n|" + "---|" * (len(head) + 1))
        best = soonest(alone)
        tell("lone machine at its best", alone, best)
        for name in FLAGS.models:
            entry = RIVALS[name]
            machines = fast_of(trained) if entry.fast_alone else trained
            if not entry.fast_alone or machines.size not in (1, trained.size):
                tell(name, [train(place / name / f"{epochs}-{rate}", machines, 32, float(rate),
                                  int(epochs), entry)
                            for epochs in FLAGS.epochs for rate in FLAGS.rates], best)


if __name__ == "__main__":
    app.run(main)
