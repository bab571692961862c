"""Advice: the models that `--advise` compares on a cluster, and its scale of time.

A training may take a second or a day on a cluster. Therefore the time between two evaluations,
ADSP's period and the local steps of a push follow from the spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor, log10, nan

from wbsp.core.goal import Goal
from wbsp.runlog.reader import Run
from wbsp.simulate.study.runs import Plan
from wbsp.simulate.study.spec import ClusterSpec
from wbsp.simulate.study.variants import Variant
from wbsp.sync import MODELS
from wbsp.sync.adsp import ADSP
from wbsp.sync.decoupled import DecoupledDiLoCo
from wbsp.sync.fedasync import FedAsync
from wbsp.sync.localsgd import LocalSGD
from wbsp.tensors.codecs import parse

# The flags of an advice that were not given. The last models are options that we added
# (docs/reference/models/wbsp.md, asp.md, nbsync.md).
FLAGS = {"model": "small", "dataset": "shapes10", "target_accuracy": 0.85, "epochs": 30.0,
         "test_images": 1000}
SYNC = [*MODELS, "pcc:weight=work", "asp:overlap=true", "nbsync:merge=add"]

FLAGS_OF_TEXT = {"target": "loss:2.0", "epochs": 0.1}

# Added for a cluster with sites. No worker within waits for another, and the model between never
# makes a site wait, or seldom. One of the two levels has momentum: with both, training diverged
# (auto/auto on four-sites).
SITES = ["auto/localsgd:wire=int8", "pcc/localsgd:wire=int8:outer=nesterov", "pcc/auto"]

STEPS = 200  # of a worker, in the mean, where the advice has no network to train
CHECKS = 200  # evaluations in the shortest time in which the cluster could go through all epochs
FEWEST_CHECKS = 20  # of them, where an evaluation takes long
LOOKING = 0.25  # of a training's time here, for its evaluations
PATIENCE = 6.0  # seconds of a task's training for which no length is given: there may be twenty
SHORTEST, LONGEST = 100, 20_000  # steps of it
PRECISION = 0.02  # of a time to the target, where the period is shorter
LOCAL = LocalSGD, FedAsync, DecoupledDiLoCo  # models with tau steps between two pushes
_FLOATS = 1 << 20  # of a model whose tensors are not known, in a format
CYCLES = 4  # of the slowest worker in a period of ADSP; published: 60 s, in runs of an hour


def length(seconds: float) -> int:
    """Return the steps of a training that takes about `PATIENCE` here: 1, 2 or 5 times a power of
    ten, between `SHORTEST` and `LONGEST`.

    Args:
        seconds: of a step on this machine.
    """
    steps = min(LONGEST, max(SHORTEST, PATIENCE / max(seconds, 1e-9)))
    power = 10 ** floor(log10(steps))
    return int(max(part * power for part in (1, 2, 5) if part * power <= steps))


def checks(batches: float, step: float, look: float) -> int:
    """Return the evaluations in the shortest time of a training, fewer where they would take more
    than a part of the training's own time.

    Args:
        batches: mini-batches of the training.
        step: seconds of a step on this machine.
        look: seconds of an evaluation on this machine.
    """
    return int(min(CHECKS, max(FEWEST_CHECKS, LOOKING * batches * step / max(look, 1e-9))))


def target_of(runs: Sequence[Run], seconds: float) -> Goal:
    """Return the value of the loss, or of the first metric where there is none, that each run has
    reached after so many seconds.

    Raises:
        ValueError: an evaluation is missing, or none is better than that of the first values; one
            line.
    """
    found = [[event for event in run.events if event["kind"] == "evaluation"
              and event["t"] <= seconds] for run in runs]
    if not all(found):
        raise ValueError("no version was evaluated in the first half of the run: give a shorter "
                         "--check_period, or a --target")
    metrics = found[0][0].get("metrics") or found[0][0]
    name = next(name for name in ("loss", *(found[0][0].get("metrics") or ()), "accuracy")
                if metrics.get(name) is not None)
    goal = Goal.parse("target", name, valued=False)
    came = [[goal.value({**event, **(event.get("metrics") or {})}) or nan for event in some]
            for some in found]
    reached = [goal.best(values) for values in came]
    values = [value for value in reached if value is not None]
    if not values:
        raise ValueError(f"the fastest machine alone has no finite {name}: it diverges; give a "
                         "lower --lr")
    if any(goal.best(values) == values[0] for values in came):
        raise ValueError(f"the fastest machine alone does not improve its first values: {name} "
                         f"{came[0][0]:.4g} at first, {came[0][-1]:.4g} after {seconds:,.3g} s; "
                         "training diverges, or is too short: give a lower --lr, or more --epochs")
    worst = min(values) if goal.most else max(values)
    digits = 10.0 ** (floor(log10(abs(worst))) - 2) if worst else 1.0
    rounded = (floor if goal.most else ceil)(worst / digits) * digits
    return goal._replace(target=float(f"{rounded:.6g}"))


def check_period(cluster: ClusterSpec, batches: float, checks: int = CHECKS) -> float | None:
    """Return the seconds between two evaluations, or None if steps take no time.

    It is a part of the workers' time for `batches` mini-batches if no worker waits.
    """
    seconds = batches / cluster.pace / checks
    return _rounded(seconds, 2) if 0 < seconds < float("inf") else None


def scaled(variant: Variant, plan: Plan) -> Variant:
    """Return `variant` with defaults that suit the cluster: ADSP's period, local models' tau."""
    suits = {}
    if variant.sync is ADSP:
        period = _rounded(CYCLES * plan.cluster.cycle(plan.model_bytes), 1)
        suits["period"] = f"{max(period, ADSP.OPTIONS['period'].low or 0.0):g}"
    elif variant.sync in LOCAL:
        if variant.inside is None:
            steps = steps_between(plan.cluster, plan.model_bytes)
        else:
            sent = parse(plan.wire or variant.sync.wire).words(_FLOATS) / _FLOATS
            steps = versions_between(plan.cluster, plan.model_bytes * sent)
        if steps:
            suits["tau"] = str(steps)
    return replace(variant, options=suits | variant.options)


def steps_between(cluster: ClusterSpec, model_bytes: float) -> int | None:
    """Return the local steps that take a mean worker as long as a round's transfers, or None.

    The transfers are those of the worker with the slowest links, or of all workers through the
    server's interface or a site's line. None: a step takes no time.
    """
    step = cluster.size / cluster.pace
    if not step:
        return None
    linked = replace(cluster, groups=tuple(
        replace(group, step_seconds=0.0, fixed_seconds=0.0, sleep_seconds=0.0, trace=())
        for group in cluster.groups))
    transfers = max(linked.cycle(model_bytes), cluster.round(model_bytes))
    return max(1, round(_rounded(transfers / step, 1)))


def versions_between(cluster: ClusterSpec, sent: float) -> int | None:
    """Return the versions of a site that take as long as its push and fetch above, or None.

    Each of the two has `sent` bytes. The site is the one with most of them; its versions take as
    long as a mean worker's step.
    """
    longest, server = 0.0, cluster.server
    for place, site in enumerate(cluster.sites):
        workers = cluster.workers_at(place)
        step = workers / cluster.within(place).pace if workers else 0.0
        if step:
            up, down = min(site.up, server.ingress), min(site.down, server.egress)
            transfers = 2 * site.latency + sent * (1 / up + 1 / down)
            longest = max(longest, transfers / step)
    return max(1, round(_rounded(longest, 1))) if longest else None


def _rounded(seconds: float, digits: int) -> float:
    return float(f"{seconds:.{digits}g}")
