"""Other batches: what a cluster and its fastest machine gain by them.

A version under a model that averages has the examples of all workers, so that more machines need
smaller batches: beyond the gradients' noise scale further examples in a step add little (McCandlish
et al. 2018, arXiv 1812.06162). Where a step takes its part of the time as well, nothing is lost.
Where most of a step's time is its fixed part, a larger batch costs little, and is tried, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import isnan, nan
from typing import TYPE_CHECKING, NamedTuple

from wbsp.figures.table import markdown
from wbsp.simulate.study.compare import Result
from wbsp.simulate.study.runs import Plan, create_model
from wbsp.simulate.study.variants import Variant

if TYPE_CHECKING:
    from wbsp.simulate.workloads.base import Experiment

GAIN = 0.9  # of the time before; after a smaller gain, no further batch is trained
FIXED = 0.5  # of a step's time: with a larger fixed part, larger batches are tried
LEAST, LEAST_OF_TEXT = 8, 2  # examples; a step of fewer takes hardly less time on most machines
HALVES = 2  # times that a batch is halved, or doubled: small steps take long to simulate


class Trained(NamedTuple):
    """The result at one batch.

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
    return _plans(variant, plan, Fraction(1, 2))


def doubles(variant: Variant, plan: Plan) -> list[Plan]:
    """Return the plans of a model at twice and at four times the batch, as `halves`; none where
    the fixed part of the fastest machine's step is not most of its time."""
    group = min(plan.cluster.groups, key=lambda group: group.mini_batch)
    if group.fixed_seconds <= FIXED * group.step_seconds:
        return []
    return _plans(variant, plan, Fraction(2))


def _plans(variant: Variant, plan: Plan, factor: Fraction) -> list[Plan]:
    """Return the plans at `factor` times the batch, and so on, as far as they are allowed."""
    found: list[Plan] = []
    while len(found) < HALVES:
        batch = factor * plan.batch_size
        other = at_batch(variant, plan, int(batch)) if batch.denominator == 1 else None
        if other is None:
            break
        found.append(plan := other)
    return found


def at_batch(variant: Variant, plan: Plan, batch: int) -> Plan | None:
    """Return the plan of a model at another batch, with a rate that suits it; None: the network or
    the model do not allow it."""
    try:
        create_model(variant.sync, variant.options, batch)
    except ValueError:  # it does not divide into the model's micro-batches
        return None
    least = LEAST_OF_TEXT if "text" in plan.settings else LEAST
    if plan.experiment is None or not least <= batch <= plan.experiment.size:
        return None
    experiment = plan.experiment.with_batch(batch)
    if experiment is None:
        return None
    cluster = replace(plan.cluster, batch_size=plan.batch_size).trains(batch)
    return replace(plan, cluster=cluster, experiment=experiment, batch_size=batch,
                   settings={**plan.settings, "batch_size": batch, "lr": experiment.rate,
                             "lr_decays": _decays(experiment) or None})


def others(variant: Variant, plan: Plan, first: Trained,
           train: Callable[[Plan], Result]) -> list[Trained]:
    """Train at smaller batches while that gains, or else at larger ones.

    Args:
        variant: the model.
        plan: of the batch that was given.
        first: what was reached at that.
        train: trains by a plan.

    Returns:
        All that was trained, `first` before all.
    """
    tried = _while_it_gains(halves(variant, plan), first, train)
    if best_of(tried) in (None, first):
        tried += _while_it_gains(doubles(variant, plan), first, train)[1:]
    return tried


def _while_it_gains(plans: list[Plan], first: Trained,
                    train: Callable[[Plan], Result]) -> list[Trained]:
    tried = [first]
    for plan in plans:
        tried.append(trained(plan, train(plan)))
        before, now = tried[-2].result, tried[-1].result
        if not now.reached or (before.reached and now.seconds > GAIN * before.seconds):
            break
    return tried


def best_of(tried: Sequence[Trained]) -> Trained | None:
    """Return the fastest that reached the target in every run, or None."""
    return min((one for one in tried if one.result.reached), key=lambda one: one.result.seconds,
               default=None)


def still_gains(tried: Sequence[Trained]) -> str:
    """Return "smaller" or "larger" if the last batch of `others` is the best, and the last that may
    be tried; else an empty text."""
    first, last = tried[0].batch, tried[-1].batch
    if best_of(tried) is not tried[-1] or last <= LEAST:
        return ""
    return {first >> HALVES: "smaller", first << HALVES: "larger"}.get(last, "")


def table(tried: Sequence[Sequence[Trained]]) -> str:
    """Return a table of what `others` tried of each model; empty if it tried nothing."""
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
