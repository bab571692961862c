"""Long runs: trainings of a minute and more, each model at the learning rate that suits it best;
and whole ones, which end when so much was trained, at the published schedule of rates.

A training of this length takes minutes of a core, and all of them take many hours; so what is left
of a run is one line of a file in the repository, the book, and a run in it is not repeated.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean

from reproduction.settings import CNN, Setting
from reproduction.work import ROOT, Simulation

from wbsp.runlog.reader import Run

BOOK = ROOT / "docs/long-runs.csv"
PERIOD, WHOLE_PERIOD = 1.5, 5.0  # virtual seconds between two evaluations
STEPS = 7812  # of a whole training: mini-batches of all workers, 20 passes over CIFAR-10
CUTS = {0.4: 0.1, 0.7: 0.01}  # part of a worker's share of these -> factor of the rate [code]
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
# The models side by side, as --sync names them, and what comes after all of these.
PUBLISHED = ("bsp", "ssp:s=40", "asp", "wbsp", "pcc")
OURS = ("asp:overlap=true", "pcc:weight=work", "pcc:weight=work:late=true")
FURTHER = ("asp:refresh=published", "ssp:refresh=published", "adsp:period=2", "nbsync")
WHOLE_ONLY = ("pcc:commit=every_push",)  # as the published code commits
GROUPS = {"published": PUBLISHED, "ours": OURS, "further": FURTHER}
SIDE_BY_SIDE = ("published", "ours")  # at their best rates; the others once, at the usual one


_WHOLE = "-whole"  # behind the name of a cell


@dataclass(frozen=True)
class Cell:
    """A cluster of the long runs."""

    heterogeneity: str
    workers: int
    bandwidth: str
    whole: bool = False  # a training to its end, and not for some seconds
    network: str = SMALL

    @property
    def name(self) -> str:
        name = f"{self.heterogeneity}-{self.workers}-{self.bandwidth}".lower()
        name += "" if self.network == SMALL else f"-{self.network}"
        return name + _WHOLE if self.whole else name

    @property
    def title(self) -> str:
        return (f"{self.heterogeneity}, {self.workers} workers, {self.bandwidth[:-4]} "
                f"{self.bandwidth[-4:]}" + ("" if self.network == SMALL else ", published network"))

    @property
    def seconds(self) -> int:
        """Virtual seconds of a run."""
        return SECONDS[self.workers] if self.network == SMALL else CNN_SECONDS


def rated(workers: int) -> Cell:
    """The cluster in which the rates are compared."""
    return Cell("H1", workers, MEASURED)


def compared(workers: Iterable[int]) -> list[Cell]:
    """The clusters in which each model runs at its best rate: all kinds of two workers, one of
    eight, and other networks under the kinds that differ most."""
    cells = []
    for n in workers:
        cells += [Cell(h, n, MEASURED) for h in (HETEROGENEITY if n == 2 else HETEROGENEITY[:1])]
        cells += [Cell(h, n, bandwidth) for bandwidth in BANDWIDTHS[1:]
                  for h in HETEROGENEITY[:2 if n == 2 else 1]]
    return cells


def label(model: str) -> str:
    """A model's name in tables: "pcc weight=work"."""
    return model.replace(":", " ")


LABELS = tuple(label(model) for group in (*GROUPS.values(), WHOLE_ONLY) for model in group)


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
        return WHOLE_PERIOD if self.cell.endswith(_WHOLE) else PERIOD

    @cached_property
    def mean(self) -> float:
        """Mean accuracy over the run's time: a measure of a rate that needs no target."""
        return fmean(self.accuracy)

    @cached_property
    def final(self) -> float:
        """Mean accuracy of the last tenth of the run."""
        return fmean(self.accuracy[-max(1, len(self.accuracy) // 10):])

    def time_to(self, accuracy: float) -> float:
        """Virtual seconds until the mean of the newest `SMOOTHED` evaluations is at `accuracy`;
        infinite if it never is. One version alone may be lucky, of a model whose versions vary
        luckier than of another."""
        means = (fmean(self.accuracy[max(0, place + 1 - SMOOTHED):place + 1])
                 for place in range(len(self.accuracy)))
        return next((self.period * place for place, value in enumerate(means) if value >= accuracy),
                    math.inf)


def entry(cell: Cell, label: str, rate: float, run: Run) -> Entry:
    """The entry of a finished run."""
    total, seen = run.summary["total"], run.evaluations
    period = WHOLE_PERIOD if cell.whole else PERIOD
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
        """The entries of a model in a cell at a rate, in the order of the seeds."""
        return [self.entries[key] for seed in SEEDS
                if (key := (cell.name, label, rate, seed)) in self.entries]

    def best_rate(self, cell: Cell, label: str) -> float:
        """The rate with the highest mean accuracy over time under seed 0, of those that were tried
        in the cell or else with as many workers where the rates are compared; of rates that are
        `EQUAL`, the lowest: a higher one may diverge under another seed."""
        for where in (cell, replace(rated(cell.workers), network=cell.network)):
            tried = {rate: found[0].mean for rate in RATES
                     if (found := self.of(where, label, rate)) and found[0].seed == 0}
            if len(tried) > 1:
                most = max(tried.values())
                return min(rate for rate, mean in tried.items() if mean > most - EQUAL)
        return USUAL

    def best(self, cell: Cell, label: str) -> list[Entry]:
        """The entries of a model in a cell at its best rate; at the usual one, where there are none
        of that yet."""
        return self.of(cell, label, self.best_rate(cell, label)) or self.of(cell, label, USUAL)


@dataclass(frozen=True)
class LongRun(Simulation):
    """The job of some models in a cell at one rate and seed, whose results are put into a book."""

    cell: Cell = Cell("H1", 2, MEASURED)
    rate: float = USUAL
    book: Book = field(default_factory=lambda: Book(BOOK), compare=False)

    def left(self) -> list[str]:
        left = []
        for model in self.setting.models:
            if (self.cell.name, label(model), self.rate, self.seed) in self.book.entries:
                continue
            run = self.run(model)
            if run is None:
                left.append(model)
                continue
            self.book.add(entry(self.cell, label(model), self.rate, run))
        return left


def job(cell: Cell, group: str, rate: float, seed: int, out: Path, book: Book,
        models: Sequence[str] | None = None) -> LongRun:
    """The job of a group's models, or of some of them. No two jobs may share a name: it is that of
    their folder."""
    flags = {"model": cell.network, "dataset": "cifar10", "test_images": 2000, "jitter": 0.1, **CNN,
             "workers": cell.workers, "heterogeneity": cell.heterogeneity,
             "bandwidth": cell.bandwidth, "latency": "1ms", "lr": rate,
             **(_to_the_end(cell.workers) if cell.whole else
                {"until": f"{cell.seconds}s", "check_period": f"{PERIOD}s"})}
    setting = Setting("long", f"{cell.name}-{rate:g}-{group}", cell.title, flags,
                      tuple(models or GROUPS[group]), {}, cost=30.0 * cell.workers)
    return LongRun(setting, seed, out, cell, rate, book)


def _to_the_end(workers: int) -> dict[str, object]:
    """Flags of a whole training. The cuts of the rate are at the published parts of a worker's
    steps, were all workers equally fast; where they are not, a fast one comes to them earlier."""
    cuts = (f"{round(part * STEPS / workers)}:{factor:g}" for part, factor in CUTS.items())
    return {"max_steps": STEPS, "lr_decays": ",".join(cuts), "check_period": f"{WHOLE_PERIOD}s"}


def published() -> Cell:
    """The cluster in which the published network is trained."""
    return Cell("H1", 2, MEASURED, network="cnn")


def whole(workers: int) -> Cell:
    """The cluster of the whole trainings."""
    return Cell("H1", workers, MEASURED, whole=True)


def plan(out: Path, book: Book, workers: Sequence[int] = (2, 8)) -> list[LongRun]:
    """All jobs, in an order that can be cut anywhere: every kind of cluster once; the rates; then
    each model at its best rate, on other networks and under other seeds; whole trainings of two
    workers, at the published rate and at the best one; and the published network.

    What the last part holds depends on what the book knows of the rates. Everything with everything
    would be 800 runs of three minutes and more; so rates are compared under H1, and seeds and
    networks tried where the kinds of clusters differ most.
    """
    kinds = [Cell(h, n, MEASURED) for n in workers for h in HETEROGENEITY]
    first = [job(cell, group, USUAL, SEEDS[0], out, book) for cell in kinds for group in GROUPS]
    tried = [job(rated(n), group, rate, SEEDS[0], out, book)
             for n, rate, group in product(workers, RATES[1:], SIDE_BY_SIDE)]
    others = [(cell, seed) for cell in compared(workers)
              for seed in (SEEDS if cell.bandwidth == MEASURED else SEEDS[:1])]
    best = [one for cell, seed in sorted(others, key=lambda other: other[1])
            for one in _best(cell, seed, out, book)]
    ends = [one for n in workers if n == 2 for seed in SEEDS
            for one in _whole(whole(n), seed, out, book)]
    cnn = [job(published(), group, USUAL, SEEDS[0], out, book)
           for group in SIDE_BY_SIDE if 2 in workers]
    jobs: dict[str, LongRun] = {}
    for one in (*first, *tried, *best, *ends, *cnn):
        jobs.setdefault(one.name, one)  # of one name, the first is of the whole group
    return list(jobs.values())


def _whole(cell: Cell, seed: int, out: Path, book: Book) -> Iterable[LongRun]:
    """The whole trainings of a cell: at the published rate, and at each model's best."""
    for group, models in {**GROUPS, "code": WHOLE_ONLY}.items():
        yield job(cell, group, USUAL, seed, out, book, models)
    yield from (one for one in _best(cell, seed, out, book) if one.rate != USUAL)


def _best(cell: Cell, seed: int, out: Path, book: Book) -> Iterable[LongRun]:
    """The jobs of all models in a cell, each model at its best rate."""
    for group in SIDE_BY_SIDE:
        models = GROUPS[group]
        rates = {model: book.best_rate(cell, label(model)) for model in models}
        for rate in sorted(set(rates.values())):
            yield job(cell, group, rate, seed, out, book,
                      [model for model in models if rates[model] == rate])
