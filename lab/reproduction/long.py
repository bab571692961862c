"""Long runs: trainings of a minute and more, each model at the learning rate that suits it best;
and whole ones, which end when so much was trained, at the published schedule of rates.

A training of this length takes minutes of a core, and all of them take many hours; so what is left
of a run is one line of a file in the repository, the book, and a run in it is not repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from reproduction.book import (
    BANDWIDTHS,
    BOOK,
    HETEROGENEITY,
    MEASURED,
    PERIOD,
    RATES,
    SECONDS,
    SEEDS,
    USUAL,
    WHOLE_PERIOD,
    Book,
    Cell,
    alone,
    entry,
    rated,
)
from reproduction.settings import CNN, Setting
from reproduction.work import Simulation

BATCHES = 50_000 / 128  # mini-batches of an epoch
EPOCHS, PUBLISHED_EPOCHS = 20, 100  # of whole trainings
CUTS = {0.4: 0.1, 0.7: 0.01}  # part of a worker's share of them -> factor of the rate [code]
# The models side by side, as --sync names them, and what comes after all of these.
PUBLISHED = ("bsp", "ssp:s=40", "asp", "wbsp", "pcc")
OURS = ("asp:overlap=true", "pcc:weight=work", "pcc:weight=work:late=true")
FURTHER = ("asp:refresh=published", "ssp:refresh=published", "adsp:period=2", "nbsync")
WHOLE_ONLY = ("pcc:commit=every_push",)  # as the published code commits
SIDE_BY_SIDE = {"published": PUBLISHED, "ours": OURS}  # at their best rates; the others at one
GROUPS = {**SIDE_BY_SIDE, "further": FURTHER}
ALONE = "bsp"  # how one worker trains; it waits for nothing
LEADING = ("asp", "pcc", "pcc:weight=work:late=true")  # what leads; in all clusters, all seeds


def compared(workers: Iterable[int]) -> list[Cell]:
    """Return the clusters in which each model runs at its best rate: all kinds of two workers, one
    of eight, and other networks under the kinds that differ most."""
    cells = []
    for n in workers:
        cells += [Cell(h, n, MEASURED) for h in (HETEROGENEITY if n == 2 else HETEROGENEITY[:1])]
        cells += [Cell(h, n, bandwidth) for bandwidth in BANDWIDTHS[1:]
                  for h in HETEROGENEITY[:2 if n == 2 else 1]]
    return cells


def _cells(workers: Iterable[int]) -> Iterable[Cell]:
    """Return all clusters of the small network."""
    return (Cell(h, n, bandwidth) for n, bandwidth, h
            in product(workers, BANDWIDTHS, HETEROGENEITY))


def label(model: str) -> str:
    """Return a model's name in tables: "pcc weight=work"."""
    return model.replace(":", " ")


LABELS = tuple(label(model) for group in (*GROUPS.values(), WHOLE_ONLY) for model in group)


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
    """Return the job of a group's models, or of some of them. Each job needs its own name, which is
    that of its folder."""
    flags = {"model": cell.network, "dataset": "cifar10", "test_images": 2000, "jitter": 0.1, **CNN,
             "workers": cell.workers, "heterogeneity": cell.heterogeneity,
             "bandwidth": cell.bandwidth, "latency": "0s" if cell == alone(cell.epochs) else "1ms",
             "lr": rate,
             **(_to_the_end(cell) if cell.epochs else
                {"until": f"{cell.seconds}s", "check_period": f"{PERIOD}s"})}
    setting = Setting("long", f"{cell.name}-{rate:g}-{group}", cell.title, flags,
                      tuple(models or GROUPS[group]), {}, cost=30.0 * cell.workers)
    return LongRun(setting, seed, out, cell, rate, book)


def _to_the_end(cell: Cell) -> dict[str, object]:
    """Flags of a whole training. The cuts of the rate are at the published parts of the mean
    worker's steps; where each counts its own, a fast one comes to them earlier."""
    steps = int(cell.epochs * BATCHES)  # of all workers
    cuts = (f"{round(part * steps / cell.workers)}:{factor:g}" for part, factor in CUTS.items())
    return {"max_steps": steps, "lr_decays": ",".join(cuts), "lr_steps": cell.lr_steps,
            "check_period": f"{WHOLE_PERIOD}s"}


def published() -> Cell:
    """Return the cluster in which the published network is trained."""
    return Cell("H1", 2, MEASURED, network="cnn")


def whole(workers: int) -> Cell:
    """Return the cluster of the whole trainings."""
    return Cell("H1", workers, MEASURED, EPOCHS)


def wholes() -> dict[str, Cell]:
    """Return all clusters and lengths of whole trainings, by their names in the page's marks."""
    longest = replace(whole(2), epochs=PUBLISHED_EPOCHS)
    return {**{f"{n}": whole(n) for n in SECONDS},
            **{f"mean-{n}": replace(whole(n), lr_steps="mean") for n in SECONDS},
            "equal": replace(whole(2), heterogeneity="none"),
            "published-length": longest,
            "mean-published-length": replace(longest, lr_steps="mean"),
            "published-network": replace(published(), epochs=EPOCHS)}


def plan(out: Path, book: Book, workers: Sequence[int] = (2, 8)) -> list[LongRun]:
    """Return all jobs, in an order that can be cut anywhere.

    The order: every kind of cluster once, and one worker alone; the rates; then each model at its
    best rate, on other networks and under other seeds, and the leading models in all clusters under
    all seeds; whole trainings, at the published rate and at the best one, of two workers under all
    seeds; and once the published network for some seconds, and whole trainings elsewhere, for as
    long as published, and of that network.

    What the last parts hold depends on what the book knows of the rates. Everything with everything
    would be 800 runs of three minutes and more; so rates are compared under H1, and all models
    tried under seeds and on networks where the kinds of clusters differ most.
    """
    kinds = [Cell(h, n, MEASURED) for n in workers for h in HETEROGENEITY]
    first = [job(cell, group, USUAL, SEEDS[0], out, book) for cell in kinds for group in GROUPS]
    tried = [job(rated(n), group, rate, SEEDS[0], out, book)
             for n, rate, group in product(workers, RATES[1:], SIDE_BY_SIDE)]
    lone = [*(job(alone(), "alone", rate, SEEDS[0], out, book, [ALONE]) for rate in RATES),
            *(one for seed in SEEDS[1:]
              for one in _best(alone(), seed, out, book, {"alone": [ALONE]})),
            *(job(alone(EPOCHS), "alone", USUAL, seed, out, book, [ALONE]) for seed in SEEDS)]
    others = [(cell, seed) for cell in compared(workers)
              for seed in (SEEDS if cell.bandwidth == MEASURED else SEEDS[:1])]
    best = [one for cell, seed in sorted(others, key=lambda other: other[1])
            for one in _best(cell, seed, out, book)]
    remaining = [other for other in product(_cells(workers), SEEDS) if other not in others]
    leading = [one for cell, seed in sorted(remaining, key=lambda other: other[1])
               for one in _best(cell, seed, out, book, {"leading": LEADING})]
    ends = [one for n in workers for seed in (SEEDS if n == 2 else SEEDS[:1])
            for one in (*_whole(whole(n), seed, out, book), *_best(whole(n), seed, out, book))]
    once = [*(job(published(), group, USUAL, SEEDS[0], out, book) for group in SIDE_BY_SIDE),
            *(one for cell in wholes().values() for one in _whole(cell, SEEDS[0], out, book))]
    jobs, planned = [], set()
    for one in (*first, *lone, *tried, *best, *leading, *ends,
                *(one for one in once if one.cell.workers in workers)):
        new = [model for model in one.setting.models
               if (one.cell, one.rate, one.seed, model) not in planned]
        planned.update((one.cell, one.rate, one.seed, model) for model in new)
        if new:
            jobs.append(replace(one, setting=replace(one.setting, models=tuple(new))))
    return jobs


def _whole(cell: Cell, seed: int, out: Path, book: Book) -> Iterable[LongRun]:
    """Yield the whole trainings of a cell at the published rate."""
    for group, models in {**GROUPS, "code": WHOLE_ONLY}.items():
        yield job(cell, group, USUAL, seed, out, book, models)


def _best(cell: Cell, seed: int, out: Path, book: Book,
          groups: Mapping[str, Sequence[str]] = SIDE_BY_SIDE) -> Iterable[LongRun]:
    """Yield the jobs of all models in a cell, each model at its best rate."""
    for group, models in groups.items():
        rates = {model: book.best_rate(cell, label(model)) for model in models}
        for rate in sorted(set(rates.values())):
            yield job(cell, group, rate, seed, out, book,
                      [model for model in models if rates[model] == rate])
