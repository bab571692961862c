"""Goodput and progress of a model on a cluster, found without training a network.

Goodput is what counts of the mini-batches that all workers make a second: the examples of a step
that averages more batches than one count less, by the gradients' noise scale (Pollux, Qiao et al.,
OSDI 2021; docs/explanation/noise-scale.md). Progress is the steps that the network makes: the mean
of eight workers' steps is one step, and an outer step with momentum makes it several. A run on a
slope, where no step undoes another, gives both, in a tenth of a second.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from wbsp.simulate.study.compare import Result
from wbsp.simulate.study.runs import Plan, make_cluster, outer_step, step_size
from wbsp.simulate.study.variants import Variant
from wbsp.simulate.workloads.slope import SlopeWorkload
from wbsp.sync.auto import Auto
from wbsp.sync.noise import Pushed, sums_of

STEPS = 100  # of a worker, in the mean
FLOATS = 1024  # of a shard: their format's bytes are about those of a network's
CLOSE = 2.0  # a model of so many times less goodput than the best one's is not trained
FEWEST = 0.6  # of the steps of the shortest training so far: averages need 0.6 to 0.8 of them
LATE = 1.25  # times the best time to the target, at which another model's training ends


@dataclass(frozen=True)
class Screened:
    """A model's pace on a cluster.

    Attributes:
        rate: mini-batches/s of all workers.
        versions: of each, its examples, and the batches that a step of it averages.
        path: (seconds, steps of the network since W_0) of each version, ascending.
    """

    rate: float
    versions: tuple[tuple[int, float], ...]
    path: tuple[tuple[float, float], ...] = ()

    def goodput(self, noise: float | None) -> float:
        """Return the mini-batches/s that count, at a noise scale in batches; None: not known."""
        if noise is None:
            return self.rate
        useful = sum(samples * (noise + 1) / (noise + width) for samples, width in self.versions)
        return self.rate * useful / max(1, sum(samples for samples, _ in self.versions))

    def steps(self, seconds: float) -> float:
        """Return the network's steps in that many seconds; after the path, at its mean pace."""
        if not self.path:
            return 0.0
        end, all_steps = self.path[-1]
        if seconds >= end:
            return all_steps * seconds / end if end else float("inf")
        made = bisect(self.path, (seconds, float("inf")))
        return self.path[made - 1][1] if made else 0.0


def screen(variant: Variant, plan: Plan, seed: int) -> Screened:
    """Run a model on the cluster on a slope.

    Raises:
        RuntimeError: workers wait for an event that will never happen.
    """
    batch = step_size(plan, variant.sync, variant.options)
    pushes: list[Pushed] = []
    versions: list[tuple[int, float]] = []
    path: list[tuple[float, float]] = []

    def note() -> None:
        vector = cluster.engine.store.latest.vector
        assert vector is not None, "the workload has vectors"
        path.append((cluster.clock.now, float(vector.mean())))

    def log(now: float, kind: str, /, **fields: Any) -> None:
        if kind == "accept":
            pushes.append(Pushed(fields["weight"], fields["steps"], fields["samples"], 0.0))
        elif kind == "commit" and pushes:
            sums = sums_of(pushes)
            versions.append((sums.samples, sums.width))
            pushes.clear()
            cluster.clock.late(0.0, note)  # the version is made after it was logged

    size = plan.cluster.size
    workload = SlopeWorkload(size, batch, FLOATS * plan.cluster.server.shards)
    cluster = make_cluster(plan, variant.sync, variant.options, seed, workload,
                           stop_samples=min(plan.stop_samples, STEPS * size * plan.batch_size),
                           outer=outer_step(plan, variant.sync), log=log)
    cluster.run(plan.until)
    batches = cluster.engine.samples / plan.batch_size
    seconds = cluster.clock.now if cluster.ended is None else cluster.ended
    return Screened(batches / max(seconds, 1e-9), tuple(versions), tuple(path))


def noise_of(results: list[Result]) -> float | None:
    """Return the noise scale in batches that the newest of these trainings measured, or None."""
    for one in reversed(results):
        for run in one.runs:
            if run.summary and (noise := run.summary.get("noise")):
                return float(noise["scale"] / noise["batch"])
    return None


def best_of(results: list[Result]) -> Result | None:
    """Return the fastest that reached the target in every run, or None."""
    return min((one for one in results if one.reached), key=lambda one: one.seconds, default=None)


def fewest_steps(paces: dict[str, Screened], results: list[Result], alone: Result | None) -> float:
    """Return the steps of the network in the shortest training to the target.

    0: not known without the machine alone, because other trainings may waste steps.

    Args:
        paces: label -> pace, of all models.
        results: of those that are trained.
        alone: of the fastest machine alone, whose mini-batches are steps; None: not known.
    """
    if alone is None or not alone.reached:
        return 0.0
    return min([alone.batches, *(paces[one.label].steps(one.seconds) for one in results
                                 if one.reached)])


def promising(paces: dict[str, Screened], results: list[Result],
              alone: Result | None = None) -> list[str]:
    """Return the models that may be best, by their labels, those of most progress first.

    The default model is before all: it is fast on most clusters, and then the others end early.

    Args:
        paces: label -> pace, of all models.
        results: of those that are trained.
        alone: of the fastest machine alone; None: not known.
    """
    left_out = slow_ones(paces, results, alone)
    best = best_of(results)
    seconds = float("inf") if best is None else best.seconds
    done = {one.label for one in results}

    def order(label: str) -> tuple[bool, float, float]:
        pace = paces[label]
        return label != Auto.name, -pace.steps(seconds), -pace.goodput(noise_of(results))
    return sorted((label for label in paces if label not in done | left_out.keys()), key=order)


def slow_ones(paces: dict[str, Screened], results: list[Result],
              alone: Result | None) -> dict[str, bool]:
    """Return the models that cannot be best, as far as is known: label -> by their goodput, or else
    by their progress. Arguments as of `promising`."""
    best, noise = best_of(results), noise_of(results)
    if best is None:
        return {}
    most = paces[best.label].goodput(noise)
    fewest = FEWEST * fewest_steps(paces, results, alone)
    by_goodput = {label: pace.goodput(noise) < most / CLOSE for label, pace in paces.items()}
    return {label: by_goodput[label] for label, pace in paces.items()
            if by_goodput[label] or pace.steps(best.seconds) < fewest}


def remarks(paces: dict[str, Screened], results: list[Result], alone: Result | None = None) -> str:
    """Return a line on what was not trained, or not to the end; empty if no model was fast.

    Arguments as of `promising`.
    """
    best, noise = best_of(results), noise_of(results)
    if best is None:
        return ""
    said = f"A training ended where it was {LATE:g} times as late as the best one before it."
    done = {one.label for one in results}
    slow = {label: why for label, why in slow_ones(paces, results, alone).items()
            if label not in done}

    def named(by_goodput: bool, value: Callable[[Screened], float], form: str) -> str:
        some = sorted((-value(paces[label]), label) for label, why in slow.items()
                      if why is by_goodput)
        return ", ".join(f"{label} ({format(-number, form)})" for number, label in some)

    most = paces[best.label].goodput(noise)
    if some := named(True, lambda pace: pace.goodput(noise) / most, ".0%"):
        said += (f" Not trained, because their goodput is less than 1/{CLOSE:g} of "
                 f"{best.label}'s: {some}.")
    if some := named(False, lambda pace: pace.steps(best.seconds), ",.0f"):
        said += (f" Not trained, because in {best.seconds:.1f} s they take the network less than "
                 f"{FEWEST:g} of the {fewest_steps(paces, results, alone):,.0f} steps of the "
                 f"shortest training to the target: {some}.")
    if slow:
        said += " --sync=MODEL,MODEL trains the models that it names, to the end."
    return said


def closest(compared: list[tuple[Variant, Plan]], seed: int,
            train: Callable[[Variant, Plan], Result], alone: Result | None = None
            ) -> tuple[list[Result], list[tuple[Variant, Plan]], str]:
    """Train the models that may be best, each until it is later than the best one so far.

    Args:
        compared: all models.
        seed: of the runs on a slope.
        train: trains one.
        alone: result of the fastest machine alone; None: not known.

    Returns:
        The results, the models that they are of, and a line on the others and on their ends.
    """
    of = {variant.label: (variant, plan) for variant, plan in compared}
    paces = {label: screen(*one, seed) for label, one in of.items()}
    results: list[Result] = []
    while left := promising(paces, results, alone):
        variant, plan = of[left[0]]
        best = best_of(results)
        if best is not None:
            plan = replace(plan, until=min(plan.until, LATE * best.seconds))
        results.append(train(variant, plan))
    return results, [of[one.label] for one in results], remarks(paces, results, alone)
