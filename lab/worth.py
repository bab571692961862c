#!/usr/bin/env python
"""What a cluster is worth: the time in which the best single machine has a model of a stated
quality, divided by the cluster's.

    lab/worth.py --data_dir=DIR                        # all cells, all models, one seed
    lab/worth.py --cells=h1-8,pair --models=auto,pcc   # some of them, beside the lone machine
    lab/worth.py --models=auto:outer.rate=8,pcc:outer=nesterov:wire=int8     # with options
    lab/worth.py --cells=lab/reports/cells/equal-4.toml    # a cluster file
    lab/worth.py --table --figure=worth.png            # print and draw what was trained

Whole trainings of the network `small` on CIFAR-10 in virtual time: the rate falls to a tenth at
60 %, and to a hundredth at 85 % of the run. A quality is reached when the mean of three looks in a
row, at 2,000 test images, is there. For each quality the best of several trainings counts, over
batch, rate and length: of the lone machine --lone, over two kinds of momentum, too, of a cluster
--trainings. Finished runs are kept in --out.
"""

import dataclasses
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
from absl import flags
from reproduction.command import run_command
from reproduction.looks import Looks, mean, reached
from reproduction.trainings import (
    EXAMPLES,
    deterministic,
    empty,
    evaluations,
    falling,
    side_by_side,
)

from wbsp import command
from wbsp.simulate.study.cluster_file import read_cluster
from wbsp.simulate.study.progress import Progress
from wbsp.simulate.study.runs import Plan, simulate
from wbsp.simulate.study.spec import ClusterSpec
from wbsp.simulate.study.variants import Variant, variants
from wbsp.simulate.study.worth import bounded_by_noise, fastest, lone

FLAGS = flags.FLAGS
QUALITIES = (0.60, 0.62, 0.64, 0.66, 0.68)
LOOK = 0.5  # seconds between two
NOISE = 163  # its scale in examples, fitted to a machine's whole trainings to 64 % (noise.py)
ALONE = "lone machine at its best"
DILOCO = "outer=nesterov:wire=int8"
QHM = "outer=qhm:outer.rate=8:outer.momentum=0.98:outer.nu=0.875"
# Of the lone machine: its momentum is an outer step after each of its steps.
MOMENTA = {"": "bsp:outer=nesterov", "-qhm": f"bsp:{QHM}"}
CELLS = ("equal-8", "h1-8", "mixed-8", "pair")
COMPARED = ("auto", f"pcc:{DILOCO}", f"localsgd:tau=16:{DILOCO}", f"decoupled:tau=16:{DILOCO}")

flags.DEFINE_list("cells", list(CELLS), "cluster files, or names of those that wbsp has")
flags.DEFINE_list("models", list(COMPARED), "models with options, as for wbsp simulate --sync")
flags.DEFINE_bool("fast_alone", False, "the machines that are as fast as a cell's fastest, without "
                  "the others")
flags.DEFINE_list("trainings", ["16-0.025-10", "16-0.025-20"], "of a cluster: batch of a worker, "
                  "initial learning rate and epochs of each")
flags.DEFINE_list("lone", ["64-0.025-5", "64-0.025-7", "64-0.025-10", "128-0.05-10"],
                  "the same of the lone machine, each with Nesterov's and with quasi-hyperbolic "
                  "momentum")
flags.DEFINE_string("network", "small", "what is trained: small, cnn or alexnet")
flags.DEFINE_enum("optimizer", None, ["sgd", "nesterov", "adam"], "of each machine of a cluster; "
                  "default: plain SGD; adam: of the lone machine, too")
flags.DEFINE_integer("test_images", 2000, "of the test set, at each look")
flags.DEFINE_integer("seed", 0, "of all runs")
flags.DEFINE_list("fresh", [], "seeds: train the settings that were best under --seed again, with "
                  "these, and print means over them")
flags.DEFINE_string("data_dir", None, "where CIFAR-10 lies, as for runcifar10gpu.py")
flags.DEFINE_string("out", "runs/worth", "folder of the runs")
flags.DEFINE_integer("jobs", 1, "processes that train at the same time", lower_bound=1)
flags.DEFINE_bool("table", False, "train nothing more")
flags.DEFINE_string("figure", None, "file to draw: worth of the first model in all cells, R, "
                    "and the bound")


class Training(NamedTuple):
    """One run. The folder tells all but network, optimizer and the images of a look."""

    folder: pathlib.Path
    plan: Plan  # without the experiment
    rate: float
    model: Variant
    seed: int
    network: str
    optimizer: str | None
    test_images: int
    data_dir: str | None


def looks(folder: pathlib.Path) -> Looks | None:
    """Return a finished run's looks; None: it is not finished."""
    found = evaluations(folder)
    return found and [(look["t"], look["accuracy"]) for look in found]


def train(one: Training) -> None:
    """Make this run, in a process of its own or not."""
    deterministic()
    from wbsp.simulate.workloads.keras import Experiment

    plan = one.plan
    steps = int(plan.stop_samples) // plan.batch_size // plan.cluster.size  # of the mean worker
    experiment = Experiment(one.network, "cifar10", plan.batch_size, one.rate, one.data_dir,
                            one.test_images, falling(steps), one.optimizer)
    empty(one.folder)
    began = time.monotonic()
    simulate(dataclasses.replace(plan, experiment=experiment), one.model.sync, one.model.options,
             one.seed, one.folder, Quiet())
    done = looks(one.folder) or []
    print(f"{'/'.join(one.folder.parts[-4:])}: {100 * mean(done[-3:]):.1f} % after "
          f"{done[-1][0]:.1f} virtual s, {time.monotonic() - began:.0f} s of real time",
          file=sys.stderr, flush=True)


class Quiet(Progress):
    """No display: several runs share the terminal."""

    def update(self, virtual: float, done: float, state: str) -> None:
        pass

    def end(self, virtual: float, state: str) -> None:
        pass


def train_all(wanted: Iterable[Training]) -> None:
    """Make those of these runs that are not there."""
    missing = {one.folder: one for one in wanted if looks(one.folder) is None}
    if not FLAGS.table:
        side_by_side(train, list(missing.values()), FLAGS.jobs)


def fast_of(cluster: ClusterSpec) -> ClusterSpec:
    """Return the machines that are as fast as the fastest."""
    least = min(group.mini_batch for group in cluster.groups)
    return fastest(cluster, sum(group.count for group in cluster.groups
                                if group.mini_batch == least))


def ideal(cluster: ClusterSpec) -> float:
    """Return R: the sum of the speeds, over the fastest's."""
    return cluster.pace / fastest(cluster, 1).pace


class Setting(NamedTuple):
    """What is free in a training."""

    batch: int  # of each worker
    rate: float
    epochs: int

    def __str__(self) -> str:
        return f"{self.batch}-{self.rate:g}-{self.epochs}"


def read_settings(flag: str) -> list[Setting]:
    """Return the settings that the flag of this name lists.

    Raises:
        ValueError: one is not batch-rate-epochs; one line.
    """
    found = []
    for text in FLAGS[flag].value:
        try:
            batch, rate, epochs = text.split("-")
            found.append(Setting(int(batch), float(rate), int(epochs)))
        except ValueError:
            raise ValueError(f"--{flag}: {text!r} is not batch-rate-epochs, such as 16-0.025-10; "
                             "give a list of these") from None
    return found


def trainings_alone(cell: str) -> list[Training]:
    """Return the trainings of a cell's fastest machine alone, in all their settings."""
    adam = FLAGS.optimizer == "adam"
    momenta = {"-adam": "bsp"} if adam else MOMENTA
    cluster = read_cluster(cell)
    alone = fastest(cluster, 1)
    sleep = alone.groups[0].sleep_seconds  # does not shrink with the batch
    machine = f"lone-{alone.pace:g}" + (f"-sleeps-{sleep:g}" if sleep else "")
    return [training(machine + kind, lone(cluster.trains(one.batch)), one, model,
                     FLAGS.optimizer if adam else None)
            for kind, name in momenta.items() for model in variants([name], [])
            for one in read_settings("lone")]


def trainings(cell: str, model: Variant) -> list[Training]:
    """Return the trainings of a model in a cell, in all their settings."""
    cluster, place = read_cluster(cell), f"{pathlib.Path(cell).stem}/{model.folder}"
    if FLAGS.fast_alone:
        place += "-fast-alone"
    wanted = []
    for one in read_settings("trainings"):
        machines = cluster.trains(one.batch)
        wanted.append(training(place, fast_of(machines) if FLAGS.fast_alone else machines, one,
                               model, FLAGS.optimizer))
    return wanted


def training(place: str, machines: ClusterSpec, setting: Setting, model: Variant,
             optimizer: str | None) -> Training:
    folder = pathlib.Path(FLAGS.out).absolute() / f"seed-{FLAGS.seed}" / place / str(setting)
    plan = Plan(machines, None, setting.batch, stop_samples=setting.epochs * EXAMPLES,
                check_period=LOOK, mean_steps=True).of(model)
    return Training(folder, plan, setting.rate, model, FLAGS.seed, FLAGS.network, optimizer,
                    FLAGS.test_images, FLAGS.data_dir)


class Result(NamedTuple):
    """What one model, or one machine, reached in a cell."""

    seconds: dict[float, list[float | None]]  # of each quality and seed; None: not reached
    end: list[float]  # accuracy of the last three looks, of each seed


def best(trainings: list[Training]) -> dict[float | str, Training]:
    """Return the setting that was soonest at each quality, and under "end" the most accurate."""
    runs = [(one, run) for one in trainings if (run := looks(one.folder))]
    found: dict[float | str, Training] = {}
    for quality in QUALITIES:
        times = [(at, n) for n, (_, run) in enumerate(runs) if (at := reached(run, quality))]
        if times:
            found[quality] = runs[min(times)[1]][0]
    if runs:
        found["end"] = max(runs, key=lambda pair: mean(pair[1][-3:]))[0]
    return found


def with_seed(one: Training, seed: int) -> Training:
    """Return the same training with another seed."""
    place = pathlib.Path(*(f"seed-{seed}" if part == f"seed-{one.seed}" else part
                           for part in one.folder.parts))
    return one._replace(seed=seed, folder=place)


def result(chosen: dict[float | str, Training], seeds: list[int]) -> Result:
    """Return what the chosen settings reached with these seeds."""
    def runs(key: float | str) -> list[Looks]:
        return [run for seed in seeds if key in chosen
                and (run := looks(with_seed(chosen[key], seed).folder))]

    return Result({quality: [reached(run, quality) for run in runs(quality)]
                   for quality in QUALITIES},
                  [mean(run[-3:]) for run in runs("end")])


def limits(cell: str) -> tuple[float, float]:
    """Return R, and what the noise allows of it, at the smallest batch of the trainings."""
    batch = min(one.batch for one in read_settings("trainings"))
    machines = ideal(read_cluster(cell).trains(batch))
    return machines, bounded_by_noise(machines, NOISE / batch)


def title(cell: str) -> str:
    machines, bound = limits(cell)
    return f"{pathlib.Path(cell).stem}: R {machines:.2f}, the noise allows {bound:.1f}"


def print_head(title: str) -> None:
    """Print what stands above a table."""
    head = [*(f"{100 * quality:.0f} %" for quality in QUALITIES), "end"]
    print(f"\n{title}\n\n{row('seconds to (worth)', head)}\n|{'---|' * (len(head) + 1)}")


def tell(name: str, found: Result, alone: Result) -> None:
    """Print a line of the table, if any run is there."""
    if not found.end:
        return
    cells = []
    for quality in QUALITIES:
        times = found.seconds[quality]
        done = [at for at in times if at is not None]
        text = f"{statistics.mean(done):.1f}" if done else "-"
        if 0 < len(done) < len(times):
            text += f" in {len(done)} of {len(times)}"
        elif (ratio := worth(found, alone, quality)) is not None:
            text += f" ({ratio:.1f})"
        cells.append(text)
    print(row(name, [*cells, f"{100 * statistics.mean(found.end):.1f}"]), flush=True)


def draw(model: str, results: dict[str, tuple[Result, Result]], path: pathlib.Path) -> None:
    """Draw worth for each quality, R and the bound, a row a cell.

    results: cell -> what the model reached, and the lone machine
    """
    from matplotlib import colormaps
    from matplotlib.ticker import ScalarFormatter

    from wbsp.figures import style

    figure, [[axes]] = style.new_figure(1, 1, 8, 1.2 + 0.32 * len(results))
    ideals, bounds = ({cell: limits(cell)[n] for cell in results} for n in range(2))
    rows = sorted(results, key=lambda cell: (ideals[cell], pathlib.Path(cell).stem))
    for mark, label, at in (("d", "R: sum of the speeds", ideals),
                            ("|", "what the noise allows", bounds)):
        axes.plot([at[cell] for cell in rows], range(len(rows)), mark, color="black",
                  markersize=5 if mark == "d" else 13, markerfacecolor="none", label=label)
    for n, quality in enumerate(QUALITIES):
        found = [(worth(*results[cell], quality), place) for place, cell in enumerate(rows)]
        done = [(value, place) for value, place in found if value is not None]
        axes.plot(*zip(*done, strict=True), "o", markersize=6, label=f"{100 * quality:.0f} %",
                  color=colormaps["viridis"](n / (len(QUALITIES) - 1)))
    axes.axvline(1, color="gray", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set(xlabel="worth: times as fast as the best single machine",
             ylim=(-0.6, len(rows) - 0.4))
    axes.set_yticks(range(len(rows)), [pathlib.Path(cell).stem for cell in rows])
    style.set_title(axes, f"Worth of {model}, by the quality reached")
    handles, labels = axes.get_legend_handles_labels()
    style.legend_below(figure, handles, labels)
    style.save(figure, path)


def worth(found: Result, alone: Result, quality: float) -> float | None:
    """Return the ratio of the mean seconds; None: some run did not reach the quality."""
    times, lone_times = found.seconds[quality], alone.seconds[quality]
    if not times or not lone_times or None in times or None in lone_times:
        return None
    return statistics.mean(lone_times) / statistics.mean(times)


def row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def main(argv):
    return run_command("worth", run, argv)


def run() -> int:
    models = {one.label: one for one in variants(FLAGS.models, [])}
    plans = {(cell, ALONE): trainings_alone(cell) for cell in FLAGS.cells}
    plans |= {(cell, name): trainings(cell, model) for cell in FLAGS.cells
              for name, model in models.items()}
    train_all(one for plan in plans.values() for one in plan)
    chosen = {key: best(plan) for key, plan in plans.items()}
    seeds = [int(seed) for seed in FLAGS.fresh] or [FLAGS.seed]
    train_all(with_seed(one, seed) for settled in chosen.values() for one in settled.values()
              for seed in seeds)
    first, *_ = models
    results = {}
    for cell in FLAGS.cells:
        print_head(title(cell))
        found = {name: result(chosen[cell, name], seeds) for name in (ALONE, *models)}
        for name, one in found.items():
            tell(name, one, found[ALONE])
        if found[first].end:
            results[cell] = found[first], found[ALONE]
    if len(results) > 1:
        print_head(f"{first} in all cells")
        for cell, (one, alone) in results.items():
            tell(title(cell), one, alone)
    if FLAGS.figure:
        draw(first, results, pathlib.Path(FLAGS.figure))
    return 0


if __name__ == "__main__":
    command.run(main, "worth", __doc__)
