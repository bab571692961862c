"""Smaller batches: what a cluster and its fastest machine gain by them.

A version under a model that averages has the examples of all workers, so that more machines need
smaller batches: beyond the gradients' noise scale further examples in a step add little (McCandlish
et al. 2018, arXiv 1812.06162). Where a step takes its part of the time as well, nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isnan, nan
from typing import TYPE_CHECKING, NamedTuple

from wbsp.figures.table import markdown
from wbsp.simulate.study.compare import Result
from wbsp.simulate.study.runs import Plan, create_model
from wbsp.simulate.study.variants import Variant

if TYPE_CHECKING:
    from wbsp.simulate.workloads.base import Experiment

GAIN = 0.9  # of the time before; after a smaller gain, no smaller batch is trained
LEAST, LEAST_OF_TEXT = 8, 2  # examples; a step of fewer takes hardly less time on most machines
HALVES = 2  # times that a batch is halved: small steps take long to simulate


class Trained(NamedTuple):
    """What was reached at one batch.

    Attributes:
        rate: the learning rate; NaN if no network was trained.
        decays: of the rate, as --lr_decays, or empty.
    """

    batch: int
    rate: float
    result: Result
    decays: str = ""

    @property
    def settings(self) -> str:
        """The batch and the rate, in words."""
        if isnan(self.rate):
            return f"batch {self.batch}"
        return f"batch {self.batch}, learning rate {self.rate:g}" + (
            f", decays {self.decays}" if self.decays else "")


def trained(plan: Plan, result: Result) -> Trained:
    """Return what a plan's run has reached."""
    if plan.experiment is None:
        return Trained(plan.batch_size, nan, result)
    return Trained(plan.batch_size, plan.experiment.rate, result, _decays(plan.experiment))


def halves(variant: Variant, plan: Plan) -> list[Plan]:
    """Return the plans of a model at half and at a quarter of the batch, with rates that suit
    them; fewer where a batch is odd, or the network or the model do not allow it."""
    found = [plan]
    while len(found) <= HALVES and plan.experiment is not None and not plan.batch_size % 2:
        batch = plan.batch_size // 2
        try:
            create_model(variant.sync, variant.options, batch)
        except ValueError:  # it does not divide into the model's micro-batches
            break
        least = LEAST_OF_TEXT if "text" in plan.settings else LEAST
        experiment = plan.experiment.with_batch(batch) if batch >= least else None
        if experiment is None:
            break
        cluster = replace(plan.cluster, batch_size=plan.batch_size).trains(batch)
        plan = replace(plan, cluster=cluster, experiment=experiment, batch_size=batch,
                       settings={**plan.settings, "batch_size": batch, "lr": experiment.rate,
                                 "lr_decays": _decays(experiment) or None})
        found.append(plan)
    return found[1:]


def smaller(plans: list[Plan], first: Trained, train: Callable[[Plan], Result]) -> list[Trained]:
    """Train at smaller batches while that gains.

    Args:
        plans: of `halves`.
        first: what was reached at the full batch.
        train: trains by a plan.

    Returns:
        All that was trained, `first` before all.
    """
    tried = [first]
    for plan in plans:
        tried.append(trained(plan, train(plan)))
        before, now = tried[-2].result, tried[-1].result
        if not now.reached or (before.reached and now.seconds > GAIN * before.seconds):
            break
    return tried


def best_of(tried: Sequence[Trained]) -> Trained | None:
    """Return the fastest of those that reached the target in every run, or None."""
    return min((one for one in tried if one.result.reached), key=lambda one: one.result.seconds,
               default=None)


def still_gains(tried: Sequence[Trained]) -> bool:
    """Return whether the last batch of `smaller` is the best, and the last that may be tried."""
    return len(tried) == HALVES + 1 and best_of(tried) is tried[-1] and tried[-1].batch > LEAST


def table(tried: Sequence[Sequence[Trained]]) -> str:
    """Return a table of what `smaller` tried of each model; empty if it tried nothing."""
    if all(len(one) == 1 for one in tried):
        return ""
    rates = {one.batch: one.rate for some in tried for one in some}
    labels = [some[0].result.label for some in tried]
    rows = [[str(batch), f"{rate:g}", *(_seconds(some, batch) for some in tried)]
            for batch, rate in rates.items()]
    return (f"Seconds {tried[0][0].result.goal} by the batch, if a step takes its part of the time "
            "(step_seconds=8ms+0.1ms has a fixed part, which does not shrink):\n\n"
            + markdown(["batch", "rate", *labels], rows))


def _decays(experiment: Experiment) -> str:
    return ",".join(f"{steps}:{factor:g}" for steps, factor in (experiment.decays or {}).items())


def _seconds(tried: Sequence[Trained], batch: int) -> str:
    for one in tried:
        if one.batch == batch:
            return f"{one.result.seconds:.1f}" if one.result.reached else "not reached"
    return "not trained"
