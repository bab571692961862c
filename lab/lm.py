#!/usr/bin/env python
"""What a cluster is worth to a language model: the seconds of the best single machine to the loss
that a cluster has at the end of its run, divided by the cluster's.

    lab/lm.py --cells=equal-8 --entries=lone,auto   # all their settings and lengths of the file
    lab/lm.py --cells=pair --entries='ddp:uneven=true' --settings=batch=4:lr=3e-3 --seeds=0
    lab/lm.py --budget=20min                        # all that lab/reports/lm.toml has, in pieces
    lab/lm.py --table --csv=lab/reports/lm.csv --figure=worth.png    # of what is there

The decoder `gpt` on Python's library, trained by AdamW in virtual time: cells, entries and what is
swept for each are in lab/reports/lm.toml, the rules in lab/reports/lm-contract.md. Of each entry
all settings are trained with the first seed; the best has the other seeds. A run that is there is
not made again, so this may be stopped and started at will.
"""

import csv
import dataclasses
import math
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
from absl import flags
from reproduction.command import budget, run_command
from rivals import cells as files
from rivals.cells import Cell, Entry
from rivals.entries import rival
from rivals.ground import Look
from rivals.trainings import Setting, Training, examples, read, said, setting, timed, write

from wbsp import command
from wbsp.simulate.study.variants import variants

FLAGS = flags.FLAGS

flags.DEFINE_list("cells", [], "of the file; default: all")
flags.DEFINE_list("entries", [], "rivals, or models as for wbsp simulate --sync; default: those of "
                  "the file. Lone machines that are there are in the table, too")
flags.DEFINE_list("settings", [], "that are swept, such as batch=2:lr=1.4e-3:beta1=0; default: "
                  "those of the file")
flags.DEFINE_list("lengths", [], "seconds of runs; default: those of the file")
flags.DEFINE_list("seeds", ["0", "1", "2", "3", "4"], "of the runs; settings are swept with the "
                  "first")
flags.DEFINE_string("file", str(files.FILE), "cells and entries")
flags.DEFINE_string("model", "gpt", "the network, with its options")
flags.DEFINE_string("out", "runs/lm", "folder of the curves")
flags.DEFINE_string("budget", None, "time after which no run begins, such as 20min")
flags.DEFINE_bool("table", False, "train nothing more")
flags.DEFINE_bool("list", False, "print the runs that are missing, and train nothing")
flags.DEFINE_integer("pace", None, "train nothing, and print how many examples each entry trains "
                     "with this batch of a worker, in those of the lone machine", lower_bound=1)
flags.DEFINE_string("figure", None, "file to draw: worth over R in all cells, of each rule by its "
                    "best entry, at the first length of a cell")
flags.DEFINE_string("csv", None, "file for the curves of all runs, a line for each look")


class Row(NamedTuple):
    """What an entry has in a cell after a length: its best setting, and its losses by seed."""

    cell: Cell
    entry: Entry
    seconds: float
    setting: Setting
    losses: dict[int, float]

    @property
    def loss(self) -> float:
        """Mean over the seeds."""
        return statistics.mean(self.losses.values())


class Runs:
    """The runs that are there, and those that may still begin."""

    def __init__(self, folder: pathlib.Path, end: float, only_read: bool):
        self._folder, self._end, self._only_read = folder, end, only_read
        self.asked: dict[pathlib.Path, Training] = {}

    def looks(self, one: Training) -> list[Look] | None:
        """Return the run's looks; make it if it is missing and there is time."""
        path = self._folder / one.path
        self.asked[path] = one
        found = read(path)
        if found is not None or self._only_read or time.monotonic() >= self._end:
            return found
        found, took = timed(one)
        write(path, one, found, took)
        print(f"{one.path}: loss {found[-1].loss:.4f}, {found[-1].examples:,} examples, "
              f"{took:.0f} s of real time", file=sys.stderr, flush=True)
        return found

    def loss(self, one: Training) -> float | None:
        """Return the loss at the run's end; None: it is not there."""
        found = self.looks(one)
        return None if found is None else found[-1].loss


def row(runs: Runs, cell: Cell, entry: Entry, seconds: float, seeds: list[int]) -> Row | None:
    """Return what an entry has; None: nothing is there yet."""
    def of(one: Setting, seed: int) -> Training:
        return Training(cell, entry.name, one, seconds, seed, FLAGS.model)

    swept = [(loss, n, one) for n, one in enumerate(map(setting, entry.settings))
             if (loss := runs.loss(of(one, seeds[0]))) is not None]
    if not swept:
        return None
    # A loss that is no number is that of a diverged training.
    _, _, best = min(swept, key=lambda found: (math.isnan(found[0]), *found[:2]))
    losses = {seed: loss for seed in seeds if (loss := runs.loss(of(best, seed))) is not None}
    return Row(cell, entry, seconds, best, losses)


def alone(entry: Entry) -> bool:
    """Return whether this is the lone machine."""
    found = rival(entry.name)
    return found is not None and found.alone


def curve(rows: Iterable[Row]) -> dict[float, float]:
    """Return seconds -> mean loss of the best lone machine."""
    found: dict[float, float] = {}
    for one in rows:
        if not math.isnan(one.loss):
            found[one.seconds] = min(one.loss, found.get(one.seconds, math.inf))
    return found


def seconds_alone(lone: dict[float, float], loss: float) -> tuple[float, str]:
    """Return the seconds in which the lone machine has this loss, and how sure that is.

    Lengths of runs are joined by lines, in the logarithm of the seconds. Beyond the shortest or the
    longest run it is a bound: "<" or ">".
    """
    points = sorted(lone.items())
    if loss >= points[0][1]:
        return points[0][0], "" if loss == points[0][1] else "<"
    for (first, before), (last, after) in pairwise(points):
        if after <= loss < before:
            part = (before - loss) / (before - after)
            return math.exp(math.log(first) + part * math.log(last / first)), ""
    return points[-1][0], ">"


def worth(one: Row, lone: dict[float, float]) -> tuple[float, str] | None:
    """Return the entry's worth in its cell, and how sure that is; None: it has none."""
    if not lone or math.isnan(one.loss):
        return None
    seconds, sign = seconds_alone(lone, one.loss)
    return seconds / one.seconds, sign


def told(found: tuple[float, str] | None) -> str:
    """Return a worth as the table has it."""
    return "-" if found is None else f"{found[1]}{found[0]:.2f}"


def table(rows: list[Row], lone: dict[float, float]) -> None:
    """Print the rows of one cell."""
    print("| seconds | entry | setting | loss | seeds | worth |\n|---|---|---|---|---|---|")
    for one in sorted(rows, key=lambda one: (one.seconds, math.isnan(one.loss), one.loss)):
        spread = ", ".join(f"{loss:.3f}" for loss in one.losses.values())
        print(f"| {one.seconds:g} | {one.entry.name} | {one.setting} | {one.loss:.4f} | {spread} | "
              f"{told(worth(one, lone))} |")
    sys.stdout.flush()


def draw(results: dict[str, tuple[list[Row], dict[float, float]]], path: pathlib.Path) -> None:
    """Draw worth over R: a mark for each rule in each cell, by its best entry.

    Args:
        results: cell -> its rows, and the lone machine's curve.
        path: of the file.
    """
    from matplotlib import colormaps
    from matplotlib.ticker import ScalarFormatter

    from wbsp.figures import style

    best: dict[str, dict[str, tuple[float, float]]] = {}  # rule -> cell -> (R, worth)
    for cell, (rows, lone) in results.items():
        for one in rows:
            found = worth(one, lone)
            if one.seconds != one.cell.lengths[0] or alone(one.entry) or found is None:
                continue
            marks = best.setdefault(one.entry.name.partition(":")[0], {})
            if cell not in marks or marks[cell][1] < found[0]:
                marks[cell] = one.cell.ideal, found[0]
    figure, [[axes]] = style.new_figure(1, 1, 8, 5)
    for place, (rule, marks) in enumerate(sorted(best.items())):
        # Cells of equal R stand side by side, and so do the rules.
        axes.plot([ideal * 1.015 ** (place - len(best) / 2) for ideal, _ in marks.values()],
                  [value for _, value in marks.values()],
                  **style.line_look(rule, place) | {"linestyle": "none", "markersize": 6,
                                                    "color": colormaps["tab10"](place % 10)},
                  label=rule)
    axes.axline((1, 1), (2, 2), color="black", linewidth=1, label="R")
    axes.axhline(1, color="gray", linewidth=1, label="the best lone machine")
    for scale in (axes.set_xscale, axes.set_yscale):
        scale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ScalarFormatter())
    axes.set(xlabel="R: sum of the machines' speeds, in those of the fastest",
             ylabel="worth: times as fast as the best single machine")
    style.set_title(axes, "Worth on a language model, by the loss at the end of a run")
    handles, labels = axes.get_legend_handles_labels()
    style.legend_below(figure, handles, labels)
    style.save(figure, path)


def collect(folder: pathlib.Path, path: pathlib.Path) -> None:
    """Write the curves of all runs that are in a folder into one file."""
    heads = "cell", "entry", "setting", "seconds", "seed", "commit"
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["cell", "entry", "setting", "length", "seed", "commit", *Look._fields])
        for place in sorted(folder.rglob("*.csv")):
            head = said(place)
            for look in read(place) or []:
                rows.writerow([*(head.get(key, "") for key in heads), f"{look.seconds:.5g}",
                               look.examples, f"{look.loss:.5g}"])


def chosen(entries: list[Entry]) -> list[Entry]:
    """Return the entries that the flags name, with their settings and lengths.

    Raises:
        ValueError: an entry has no settings; one line.
    """
    known = {one.name: one for one in entries}
    found = [known.get(name, Entry(name, ())) for name in FLAGS.entries or known]
    if FLAGS.settings:
        found = [dataclasses.replace(one, settings=tuple(FLAGS.settings)) for one in found]
    if FLAGS.lengths:
        found = [dataclasses.replace(one, lengths=tuple(map(float, FLAGS.lengths)))
                 for one in found]
    for one in found:
        if rival(one.name) is None:
            variants([one.name], [])  # refuses what is unknown, as does `rival`
        if not one.settings:
            raise ValueError(f"{one.name} is not in {FLAGS.file}: give its --settings, such as "
                             "batch=2:lr=1.4e-3")
        for text in one.settings:
            setting(text)  # refuses a bad one before any run
    return found


def main(argv):
    return run_command("lm", run, argv)


def run() -> int:
    cells, entries = files.read(pathlib.Path(FLAGS.file))
    if unknown := [name for name in FLAGS.cells if name not in cells]:
        raise ValueError(f"--cells: {unknown[0]!r} is unknown; {FLAGS.file} has {', '.join(cells)}")
    seeds = [int(seed) for seed in FLAGS.seeds]
    picked = chosen(entries)
    if FLAGS.pace:
        pace([cells[name] for name in FLAGS.cells or cells], picked, seeds[0])
        return 0
    lone = [one for one in entries if alone(one) and one not in picked]
    end = time.monotonic() + budget(FLAGS.budget)
    runs = Runs(pathlib.Path(FLAGS.out), end, FLAGS.table or FLAGS.list)
    old = Runs(pathlib.Path(FLAGS.out), end, True)  # of lone machines, for the table alone
    results = {}
    for cell in (cells[name] for name in FLAGS.cells or cells):
        single = rows_of(old, cell, lone, seeds)
        rows = rows_of(runs, cell, [one for one in picked if not one.only or cell.name in one.only],
                       seeds)
        single += [one for one in rows if alone(one.entry)]
        results[cell.name] = rows, curve(single)
        if not FLAGS.list and rows:
            print(f"\n{cell.name}: R {cell.ideal:.2f}\n")
            table(single + [one for one in rows if not alone(one.entry)], curve(single))
    missing = [path for path in runs.asked if not path.exists()]
    if FLAGS.list:
        print("\n".join(map(str, missing)))
    elif missing:
        print(f"lm: {len(missing)} runs are missing, of those known by now: --list prints them",
              file=sys.stderr)
    if FLAGS.csv:
        collect(pathlib.Path(FLAGS.out), pathlib.Path(FLAGS.csv))
    if FLAGS.figure:
        draw(results, pathlib.Path(FLAGS.figure))
    return 0


def pace(cells: list[Cell], entries: list[Entry], seed: int) -> None:
    """Print what each entry trains in the first length of each cell."""
    one, names = Setting(FLAGS.pace, 1.0), [cell.name for cell in cells]
    print(f"| | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    print(f"| R | {' | '.join(f'{cell.ideal:.2f}' for cell in cells)} |")
    for entry in entries:
        if alone(entry):
            continue
        found = [examples(Training(cell, entry.name, one, cell.lengths[0], seed, FLAGS.model))
                 / examples(Training(cell, "lone", one, cell.lengths[0], seed, FLAGS.model))
                 for cell in cells]
        print(f"| {entry.name} | {' | '.join(f'{ratio:.2f}' for ratio in found)} |", flush=True)


def rows_of(runs: Runs, cell: Cell, entries: Iterable[Entry], seeds: list[int]) -> list[Row]:
    """Return a row for each entry and length in a cell."""
    return [found for entry in entries for seconds in entry.lengths or cell.lengths
            if (found := row(runs, cell, entry, seconds, seeds)) is not None]


if __name__ == "__main__":
    command.run(main, "lm", __doc__)
