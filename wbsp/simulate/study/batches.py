"""Smaller batches: what a cluster and its fastest machine gain by them.

A version under a model that averages has the examples of all workers, so that more machines need
smaller batches: beyond the gradients' noise scale further examples in a step add little (McCandlish
et al. 2018, arXiv 1812.06162). Where a step takes its part of the time as well, nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from wbsp.figures.table import markdown
from wbsp.simulate.study.compare import Result
from wbsp.simulate.study.runs import Plan, create_model
from wbsp.simulate.study.variants import Variant

if TYPE_CHECKING:
    from wbsp.simulate.workloads.keras import Experiment

GAIN = 0.9  # of the time before; after a smaller gain, no smaller batch is trained
LEAST = 8  # examples; a step of fewer takes hardly less time on most machines
HALVES = 2  # times that a batch is halved: small steps take long to simulate


class Trained(NamedTuple):
    """What was reached at one batch; `decays`: of the rate, as --lr_decays, or empty."""

    batch: int
    rate: float
    result: Result
    decays: str = ""

    @property
    def flags(self) -> str:
        """The flags that train so."""
        return f"--batch_size={self.batch} --lr={self.rate:g}" + (
            f" --lr_decays={self.decays}" if self.decays else "")


def trained(plan: Plan, result: Result) -> Trained:
    """Return what a plan's training has reached."""
    assert plan.experiment is not None
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
        experiment = plan.experiment.with_batch(batch) if batch >= LEAST else None
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
        if not now.reached or before.reached and now.seconds > GAIN * before.seconds:
            break
    return tried


def advice(model: list[Trained], machine: list[Trained]) -> str:
    """Return a table of what `smaller` tried, and what follows; empty if it tried nothing.

    Args:
        model: the best model, which has reached the target at the full batch.
        machine: the fastest machine alone.
    """
    if len(model) == len(machine) == 1:
        return ""
    first, name = model[0].result, model[0].result.label
    rates = {one.batch: one.rate for one in [*model, *machine]}
    table = markdown(["batch", "rate", name, "the fastest machine alone"],
                     [[str(batch), f"{rate:g}", _seconds(model, batch), _seconds(machine, batch)]
                      for batch, rate in rates.items()])
    best, alone = _best(model), _best(machine)
    assert best is not None
    if alone is not None and alone.result.seconds < best.result.seconds:
        said = (f"At its best batch of these the fastest machine alone is faster: "
                f"{alone.result.seconds:.1f} s with {alone.flags}; {name} takes "
                f"{best.result.seconds:.1f} s at {best.batch}")
    else:
        said = (f"No smaller batch is faster under {name}" if best is model[0] else
                f"Train with {best.flags}: {name} then takes {best.result.seconds:.1f} s")
        if alone is not None:
            said += (f", worth {alone.result.seconds / best.result.seconds:.1f} of the fastest "
                     f"machine alone at its best batch of these ({alone.result.seconds:.1f} s at "
                     f"{alone.batch})")
    return (f"Seconds {first.goal} by the batch, if a step takes its part of the time (what does "
            f"not shrink is `sleep_seconds` in the cluster file):\n\n{table}\n\n{said}.")


def _decays(experiment: Experiment) -> str:
    return ",".join(f"{steps}:{factor:g}" for steps, factor in (experiment.decays or {}).items())


def _best(tried: list[Trained]) -> Trained | None:
    return min((one for one in tried if one.result.reached), key=lambda one: one.result.seconds,
               default=None)


def _seconds(tried: list[Trained], batch: int) -> str:
    for one in tried:
        if one.batch == batch:
            return f"{one.result.seconds:.1f}" if one.result.reached else "not reached"
    return "not trained"
