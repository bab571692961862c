"""The book of the long runs: what was trained, where, and what came of it, a line each."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean

from reproduction.work import ROOT

from wbsp.runlog.reader import Run

BOOK = ROOT / "lab/reports/long-runs.csv"
PERIOD, WHOLE_PERIOD = 1.5, 5.0  # virtual seconds between two evaluations
SMOOTHED = 3  # evaluations, whose mean must reach a target
SMALL = "small"  # the usual network
SECONDS = {2: 90, 8: 60}  # virtual seconds of a run of it, by the number of workers
CNN_SECONDS = 30  # of the published network, of which a step takes ten times as long
RATES = (0.1, 0.2, 0.05)
EQUAL = 0.005  # difference of accuracy that does not tell two rates apart
USUAL = RATES[0]  # of a model whose best rate is not known yet
HETEROGENEITY = ("H1", "H3", "H2")
BANDWIDTHS = ("100Mbit", "1Gbit", "20Mbit")
MEASURED = BANDWIDTHS[0]  # where the rates are compared
SEEDS = (0, 1, 2)

_EPOCHS = "-epochs"  # in the name of a cell of whole trainings


@dataclass(frozen=True)
class Cell:
    """A cluster of the long runs."""

    heterogeneity: str
    workers: int
    bandwidth: str
    epochs: int = 0  # of a training to its end; 0: it ends after some seconds
    network: str = SMALL
    lr_steps: str = "own"  # whose steps the rate's schedule counts, as --lr_steps names them

    @property
    def name(self) -> str:
        name = f"{self.heterogeneity}-{self.workers}-{self.bandwidth}".lower()
        name += "" if self.network == SMALL else f"-{self.network}"
        name += f"-{self.epochs}{_EPOCHS}" if self.epochs else ""
        return name if self.lr_steps == "own" else f"{name}-{self.lr_steps}"

    @property
    def title(self) -> str:
        kind = "equal" if self.heterogeneity == "none" else f"{self.heterogeneity},"
        return (f"{kind} {self.workers} workers, {self.bandwidth[:-4]} "
                f"{self.bandwidth[-4:]}" + ("" if self.network == SMALL else ", published network"))

    @property
    def seconds(self) -> int:
        """Virtual seconds of a run."""
        if self.network != SMALL:
            return CNN_SECONDS
        return SECONDS.get(self.workers, max(SECONDS.values()))


def alone(epochs: int = 0) -> Cell:
    """Return one fast worker, whose transfers cost nothing: it is as fast in any cluster."""
    return Cell("none", 1, "none", epochs)


def rated(workers: int) -> Cell:
    """Return the cluster in which the rates are compared."""
    return Cell("H1", workers, MEASURED)


@dataclass(frozen=True)
class Entry:
    """What the book says of one run. Accuracies in parts of 1."""

    cell: str
    label: str
    rate: float
    seed: int
    steps: int  # of all workers
    pushes: int
    pulls: int
    versions: int
    compute: float  # share of the workers' time
    accuracy: tuple[float, ...]  # of the newest version at 0, 1, 2, ... periods

    @property
    def key(self) -> tuple[str, str, float, int]:
        return self.cell, self.label, self.rate, self.seed

    @property
    def period(self) -> float:
        """Virtual seconds between two evaluations."""
        return WHOLE_PERIOD if _EPOCHS in self.cell else PERIOD

    @cached_property
    def mean(self) -> float:
        """Mean accuracy over the run's time: a measure of a rate that needs no target."""
        return fmean(self.accuracy)

    @cached_property
    def final(self) -> float:
        """Mean accuracy of the last tenth of the run."""
        return fmean(self.accuracy[-max(1, len(self.accuracy) // 10):])

    @property
    def diverged(self) -> bool:
        """True if the training lost again what it had learned, and did not find it any more."""
        return self.final < max(self.accuracy) / 2

    def time_to(self, accuracy: float) -> float:
        """Virtual seconds until the mean of the newest `SMOOTHED` evaluations is at `accuracy`;
        infinite if it never is. One version alone may be lucky, of a model whose versions vary
        luckier than of another."""
        means = (fmean(self.accuracy[max(0, place + 1 - SMOOTHED):place + 1])
                 for place in range(len(self.accuracy)))
        return next((self.period * place for place, value in enumerate(means) if value >= accuracy),
                    math.inf)


def entry(cell: Cell, label: str, rate: float, run: Run) -> Entry:
    """Return the entry of a finished run."""
    total, seen = run.summary["total"], run.evaluations
    period = WHOLE_PERIOD if cell.epochs else PERIOD
    places = range(math.ceil(run.summary["t"] / period - 1e-6) + 1)
    newest = [seen.t.searchsorted(place * period + 1e-6) - 1 for place in places]
    return Entry(cell.name, label, rate, run.settings["seed"], total["steps"], total["pushes"],
                 total["pulls"], run.summary["version"], round(total["shares"]["compute"], 4),
                 tuple(round(float(seen.accuracy[place]), 4) for place in newest))


@dataclass
class Book:
    """The entries of all finished runs, in a file of one line each."""

    path: Path
    entries: dict[tuple, Entry] = field(default_factory=dict)

    FIELDS = ("cell", "model", "rate", "seed", "steps", "pushes", "pulls", "versions", "compute",
              "accuracy")

    def __post_init__(self) -> None:
        if not self.path.exists():
            return
        text = self.path.read_text(encoding="utf-8")
        whole = text[:text.rfind("\n") + 1]
        if whole != text:  # the last line was torn by a kill
            self.path.write_text(whole, encoding="utf-8")
        for row in csv.DictReader(whole.splitlines()):
            one = Entry(row["cell"], row["model"], float(row["rate"]),
                        *(int(row[name]) for name in self.FIELDS[3:8]), float(row["compute"]),
                        tuple(int(value) / 10_000 for value in row["accuracy"].split()))
            self.entries[one.key] = one

    def add(self, one: Entry) -> None:
        """Add an entry, and write it at once: the next run may be interrupted."""
        new = not self.path.exists()
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(self.FIELDS)
            writer.writerow([*one.key, one.steps, one.pushes, one.pulls, one.versions, one.compute,
                             " ".join(f"{10_000 * value:.0f}" for value in one.accuracy)])
        self.entries[one.key] = one

    def of(self, cell: Cell, label: str, rate: float) -> list[Entry]:
        """Return the entries of a model in a cell at a rate, in the order of the seeds."""
        return [self.entries[key] for seed in SEEDS
                if (key := (cell.name, label, rate, seed)) in self.entries]

    def best_rate(self, cell: Cell, label: str) -> float:
        """Return the rate with the highest mean accuracy over time under seed 0.

        It is one of the rates that were tried in the cell, or else with as many workers where the
        rates are compared. Of rates that are `EQUAL` it is the lowest: a higher one may diverge
        under another seed. A rate at which a run with as many workers diverged, in any cluster,
        is excluded.
        """
        for where in (cell, replace(rated(cell.workers), network=cell.network)):
            tried = {rate: found[0].mean for rate in RATES
                     if (found := self.of(where, label, rate)) and found[0].seed == 0}
            if len(tried) > 1:
                steady = {rate: mean for rate, mean in tried.items()
                          if not self.diverged(where, label, rate)} or tried
                most = max(steady.values())
                return min(rate for rate, mean in steady.items() if mean > most - EQUAL)
        return USUAL

    def diverged(self, like: Cell, label: str, rate: float) -> list[Entry]:
        """Return a model's runs at a rate that diverged, in all clusters of as many workers."""
        return [one for h, bandwidth in product(HETEROGENEITY, BANDWIDTHS)
                for one in self.of(replace(like, heterogeneity=h, bandwidth=bandwidth), label, rate)
                if one.diverged]

    def best(self, cell: Cell, label: str) -> list[Entry]:
        """Return the entries of a model in a cell at its best rate, else at the usual one."""
        return self.of(cell, label, self.best_rate(cell, label)) or self.of(cell, label, USUAL)
