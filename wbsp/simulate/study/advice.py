"""Advice: what `--advise` compares on a cluster, and at which scale of time.

A cluster may need a second for a training or a day. What counts in seconds, the time between two
evaluations and ADSP's period, therefore follows from the spec.
"""

from __future__ import annotations

from dataclasses import replace

from wbsp.simulate.study.runs import Plan
from wbsp.simulate.study.spec import ClusterSpec
from wbsp.simulate.study.variants import Variant
from wbsp.sync import MODELS
from wbsp.sync.adsp import ADSP

# The flags of an advice that were not given. The last two models are options that we added
# (docs/reference/models/wbsp.md, asp.md).
FLAGS = {"model": "small", "dataset": "shapes10", "target_accuracy": 0.85, "epochs": 30.0,
         "test_images": 1000}
SYNC = [*MODELS, "pcc:weight=work", "asp:overlap=true"]

STEPS = 200  # of a worker, in the mean, where the advice has no network to train
CHECKS = 200  # evaluations in the shortest time in which the cluster could go through all epochs
PRECISION = 0.02  # of a time to the target, where the period is shorter
CYCLES = 4  # of the slowest worker in a period of ADSP; published: 60 s, in runs of an hour


def check_period(cluster: ClusterSpec, batches: float) -> float | None:
    """Seconds between two evaluations: a part of those that the workers need for so many
    mini-batches if none ever waits. None where that is no time."""
    seconds = batches / cluster.pace / CHECKS
    return _rounded(seconds, 2) if 0 < seconds < float("inf") else None


def scaled(variant: Variant, plan: Plan) -> Variant:
    """`variant`; one of ADSP with a period that suits the cluster, unless one is given."""
    if variant.sync is not ADSP:
        return variant
    period = max(_rounded(CYCLES * plan.cluster.cycle(plan.model_bytes), 1),
                 ADSP.OPTIONS["period"].low or 0.0)
    return replace(variant, options={"period": f"{period:g}", **variant.options})


def _rounded(seconds: float, digits: int) -> float:
    return float(f"{seconds:.{digits}g}")
