"""The goodput of a model on a cluster, found without training anything.

Goodput is what counts of the mini-batches that all workers make a second: the examples of a step
that averages more batches than one count less, by the gradients' noise scale (Pollux, Qiao et al.,
OSDI 2021; docs/explanation/noise-scale.md). How fast a model makes mini-batches, and how many of
them a step averages, shows a run without tensors, which takes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from wbsp.simulate.study.compare import Result
from wbsp.simulate.study.runs import Plan, make_cluster, step_size
from wbsp.simulate.study.variants import Variant
from wbsp.simulate.workloads.base import TimingWorkload
from wbsp.sync.auto import Auto
from wbsp.sync.noise import Pushed, sums_of

STEPS = 100  # of a worker, in the mean
CLOSE = 2.0  # a model of so many times less goodput than the best one's is not trained
LATE = 1.25  # times the best time to the target, at which another model's training ends


@dataclass(frozen=True)
class Screened:
    """A model's pace on a cluster.

    Attributes:
        rate: mini-batches/s of all workers.
        versions: of each, its examples, and the batches that a step of it averages.
    """

    rate: float
    versions: tuple[tuple[int, float], ...]

    def goodput(self, noise: float | None) -> float:
        """Return the mini-batches/s that count, at a noise scale in batches; None: not known."""
        if noise is None:
            return self.rate
        useful = sum(samples * (noise + 1) / (noise + width) for samples, width in self.versions)
        return self.rate * useful / max(1, sum(samples for samples, _ in self.versions))


def screen(variant: Variant, plan: Plan, seed: int) -> Screened:
    """Run a model on the cluster without tensors.

    Raises:
        RuntimeError: workers wait for an event that will never happen.
    """
    batch = step_size(plan, variant.sync, variant.options)
    pushes: list[Pushed] = []
    versions: list[tuple[int, float]] = []

    def log(now: float, kind: str, /, **fields: Any) -> None:
        if kind == "accept":
            pushes.append(Pushed(fields["weight"], fields["steps"], fields["samples"], 0.0))
        elif kind == "commit" and pushes:
            sums = sums_of(pushes)
            versions.append((sums.samples, sums.width))
            pushes.clear()

    most = min(plan.stop_samples, STEPS * plan.cluster.size * plan.batch_size)
    cluster = make_cluster(plan, variant.sync, variant.options, seed, TimingWorkload(batch),
                           stop_samples=most, log=log)
    cluster.run(plan.until)
    samples = cluster.engine.samples
    return Screened(samples / plan.batch_size / max(cluster.clock.now, 1e-9), tuple(versions))


def noise_of(results: list[Result]) -> float | None:
    """Return the noise scale in batches that the newest of these trainings measured, or None."""
    for one in reversed(results):
        for run in one.runs:
            if run.summary and (noise := run.summary.get("noise")):
                return noise["scale"] / noise["batch"]
    return None


def best_of(results: list[Result]) -> Result | None:
    """Return the fastest of those that reached the target in every run, or None."""
    return min((one for one in results if one.reached), key=lambda one: one.seconds, default=None)


def promising(paces: dict[str, Screened], results: list[Result]) -> list[str]:
    """Return the models that may be best, by their labels, those of most goodput first.

    The default model is before all: it is fast on most clusters, and then the others end early.

    Args:
        paces: label -> pace, of all models.
        results: of those that are trained.
    """
    noise, best = noise_of(results), best_of(results)
    done = {one.label for one in results}
    least = 0.0 if best is None else paces[best.label].goodput(noise) / CLOSE
    worth = {label: pace.goodput(noise) for label, pace in paces.items()}
    return sorted((label for label in paces if label not in done and worth[label] >= least),
                  key=lambda label: (label != Auto.name, -worth[label]))


def remarks(paces: dict[str, Screened], results: list[Result]) -> str:
    """Return a line on what was not trained, or not to the end; empty if no model was fast."""
    best, noise = best_of(results), noise_of(results)
    if best is None:
        return ""
    said = f"A training ended where it was {LATE:g} times as late as the best one before it."
    most = paces[best.label].goodput(noise)
    left = [f"{label} ({paces[label].goodput(noise) / most:.0%})" for label in sorted(
        paces.keys() - {one.label for one in results},
        key=lambda label: (-paces[label].goodput(noise), label))]
    if left:
        said += (f" Not trained, because their goodput is less than 1/{CLOSE:g} of "
                 f"{best.label}'s: {', '.join(left)}. --sync=MODEL,MODEL trains the models that it "
                 "names, to the end.")
    return said


def closest(compared: list[tuple[Variant, Plan]], seed: int,
            train: Callable[[Variant, Plan], Result]
            ) -> tuple[list[Result], list[tuple[Variant, Plan]], str]:
    """Train the models that may be best, each until it is later than the best one so far.

    Args:
        compared: all models.
        seed: of the runs without tensors.
        train: trains one.

    Returns:
        The results, the models that they are of, and a line on the others and on their ends.
    """
    of = {variant.label: (variant, plan) for variant, plan in compared}
    paces = {label: screen(*one, seed) for label, one in of.items()}
    results: list[Result] = []
    while left := promising(paces, results):
        variant, plan = of[left[0]]
        best = best_of(results)
        if best is not None:
            plan = replace(plan, until=min(plan.until, LATE * best.seconds))
        results.append(train(variant, plan))
    return results, [of[one.label] for one in results], remarks(paces, results)
