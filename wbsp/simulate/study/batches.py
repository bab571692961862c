"""Smaller batches: what a cluster and its fastest machine gain by them.

A version under a model that averages has the examples of all workers, so that more machines need
smaller batches: beyond the gradients' noise scale further examples in a step add little (McCandlish
et al. 2018, arXiv 1812.06162). Where a step takes its part of the time as well, nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from wbsp.figures.table import markdown
from wbsp.simulate.study.compare import Result
from wbsp.simulate.study.runs import Plan, create_model
from wbsp.simulate.study.variants import Variant

GAIN = 0.9  # of the time before: with more, no smaller batch is tried
LEAST = 16  # examples; a step of fewer takes hardly less time on most machines


class Trained(NamedTuple):
    """A model and the fastest machine alone, at one batch."""

    batch: int
    rate: float
    cluster: Result
    alone: Result


def halved(variant: Variant, plan: Plan) -> Plan | None:
    """Return the plan of a model with half the batch and a rate that suits it; None: there is
    none."""
    batch = plan.batch_size // 2
    if plan.experiment is None or plan.batch_size % 2 or batch < LEAST:
        return None
    try:
        create_model(variant.sync, variant.options, batch)
    except ValueError:  # it does not divide into the model's micro-batches
        return None
    experiment = plan.experiment.with_batch(batch)
    if experiment is None:
        return None
    cluster = replace(plan.cluster, batch_size=plan.batch_size).trains(batch)
    return replace(plan, cluster=cluster, experiment=experiment, batch_size=batch,
                   settings={**plan.settings, "batch_size": batch, "lr": experiment.rate})


def smaller(variant: Variant, plan: Plan, cluster: Result, alone: Result,
            train: Callable[[Plan], tuple[Result, Result]]) -> list[Trained]:
    """Halve the batch while the cluster gains by it; return all that was trained.

    Args:
        variant: the model.
        plan: of it.
        cluster: what it reached by that.
        alone: the fastest machine alone.
        train: trains the model and the machine alone by a plan.
    """
    if plan.experiment is None:
        return []
    tried = [Trained(plan.batch_size, plan.experiment.rate, cluster, alone)]
    while (half := halved(variant, plan)) is not None:
        assert half.experiment is not None
        tried.append(Trained(half.batch_size, half.experiment.rate, *train(half)))
        before, now = tried[-2].cluster, tried[-1].cluster
        if not now.reached or now.seconds > GAIN * before.seconds:
            break
        plan = half
    return tried if len(tried) > 1 else []


def advice(tried: list[Trained]) -> str:
    """Return a table of what `smaller` tried, and what follows; empty if it tried nothing."""
    if not tried:
        return ""
    first, name = tried[0].cluster, tried[0].cluster.label
    best = min((one for one in tried if one.cluster.reached), key=lambda one: one.cluster.seconds)
    table = markdown(["batch", "rate", name, "the fastest machine alone"],
                     [[str(one.batch), f"{one.rate:g}", _seconds(one.cluster), _seconds(one.alone)]
                      for one in tried])
    said = (f"No smaller batch is faster under {name}" if best is tried[0] else
            f"Train with --batch_size={best.batch} --lr={best.rate:g}: {name} then takes "
            f"{best.cluster.seconds:.1f} s")
    if machines := [one for one in tried if one.alone.reached]:
        alone = min(machines, key=lambda one: one.alone.seconds)
        said += (f", worth {alone.alone.seconds / best.cluster.seconds:.1f} of the fastest machine "
                 f"alone at its best batch of these ({alone.alone.seconds:.1f} s at {alone.batch})")
    return (f"Seconds {first.goal} by the batch, if a step takes its part of the time (what does "
            f"not shrink is `sleep_seconds` in the cluster file):\n\n{table}\n\n{said}.")


def _seconds(one: Result) -> str:
    return f"{one.seconds:.1f}" if one.reached else "-"
