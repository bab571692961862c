"""The worth of a cluster: compared with its fastest machine and with its fast machines.

A comparison of models on a cluster does not say whether the cluster was needed. So `--advise` also
trains on the fastest machine alone, without a server or a network, and by the best model once more
without the slow machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil, floor

from wbsp.core.goal import ACCURACY, Goal
from wbsp.core.messages import SharedData
from wbsp.simulate.study.batches import Trained
from wbsp.simulate.study.compare import Result
from wbsp.simulate.study.runs import Plan
from wbsp.simulate.study.spec import ClusterSpec
from wbsp.simulate.world.machine import INF

NEARLY = 0.95  # of the sum of all speeds, which the fast machines have between them
PAYS = 1.05  # times as fast as the fastest machine alone, from which on a cluster pays
SURELY = 1.3  # from which on one seed says so
NOISE_VERSIONS = 60  # of two mini-batches, in the training that measures the noise
NOISES = 1, 8, 64  # S for `bound`, from nearly none on


def fastest(cluster: ClusterSpec, count: int) -> ClusterSpec:
    """Return this spec with only its `count` fastest machines."""
    kept = []
    for group in sorted(cluster.groups, key=lambda group: group.mini_batch):
        if taken := min(group.count, count):
            kept.append(replace(group, count=taken))
            count -= taken
    return replace(cluster, groups=tuple(kept), text=None)


def lone(cluster: ClusterSpec) -> ClusterSpec:
    """Return the spec of the fastest machine alone, without pushes and fetches."""
    [group] = fastest(cluster, 1).groups
    return ClusterSpec((replace(group, latency=0.0, up=INF, down=INF, site=None),), model_bytes=0.0)


def noise_plan(plan: Plan) -> Plan:
    """Return the plan of a short training that measures the gradients' noise scale: under `bsp`, by
    two of the fastest machine."""
    pair = replace(lone(plan.cluster), groups=tuple(
        replace(group, count=2) for group in lone(plan.cluster).groups))
    return replace(plan, cluster=pair, outer=None, outer_options={}, wire=None, data=None,
                   stop_samples=2 * NOISE_VERSIONS * plan.batch_size)


def fast_ones(cluster: ClusterSpec) -> int:
    """Return how many of the fastest machines have nearly the speed of all."""
    return next(count for count in range(1, cluster.size + 1)
                if fastest(cluster, count).pace >= NEARLY * cluster.pace)


def bound(seconds: Sequence[float], noise: float) -> tuple[float, int]:
    """BSP's time over the bound on the time of any method, and how many of the fastest machines
    the bound uses.

        T* ~ min over m of  m / (1/t_1 + ... + 1/t_m) * (1 + S/m),  t_1 <= t_2 <= ...
        BSP ~ t_N * (1 + S/N)

    Source: Tyurin, Richtarik, NeurIPS 2023, arXiv 2305.12387; Tyurin, arXiv 2408.04929 [abstract;
    the formula from memory]. It holds for workers that share their data, plain SGD, and transfers
    that cost nothing, up to constants that are left out here.

    Args:
        seconds: t, of a gradient on each machine.
        noise: S = sigma^2 / eps, in units of a worker's batch.
    """
    ordered = sorted(seconds)

    def time(m: int) -> float:
        return m / sum(1 / t for t in ordered[:m]) * (1 + noise / m)

    best = min(range(1, len(ordered) + 1), key=time)
    return ordered[-1] * (1 + noise / len(ordered)) / time(best), best


def bounded(cluster: ClusterSpec) -> str:
    """Return a line on `bound`; empty if a machine needs no time."""
    seconds = [group.mini_batch for group in cluster.groups for _ in range(group.count)]
    if not min(seconds):
        return ""
    found = [bound(seconds, noise) for noise in NOISES]
    return ("A bound of theory, not a measurement (Tyurin and Richtarik: shared data, plain SGD, "
            "transfers cost nothing, constants left out): bsp takes "
            f"{_listed(f'{ratio:.1f}' for ratio, _ in found)} times the least possible time where "
            f"the noise S of a worker's gradient is {_listed(NOISES)}; the least time takes the "
            f"fastest {_listed(count for _, count in found)} machines.")


def bounded_by_noise(speeds: float, noise: float) -> float:
    """Return the worth that the noise of the gradients allows machines of so many times the
    fastest's speed; `noise`: its scale in batches."""
    return speeds * (1 + noise) / (speeds + noise)


def missed(alone: Result) -> str:
    """Return why there is nothing to compare if the fastest machine alone misses the target."""
    metric = alone.metric
    found = [metric.best(run.metric(metric)) for run in alone.runs]
    came = [value for value in found if value is not None]
    said, reach = "did not learn", ""
    if came:
        worst = min(came) if metric.most else max(came)
        said = f"came to {metric.say(worst, '.0f' if metric.metric == ACCURACY else '.4g')}"
        reach = within_reach(metric, worst)
    return (f"the fastest machine alone {said} in {alone.end:,.1f} s, not {alone.goal}, so there "
            "is nothing to compare with: give " + (f"{reach}, or " if reach else "")
            + "a later end by --epochs")


def within_reach(metric: Goal, came: float) -> str:
    """Return the flag of a target that a training to the value `came` has surely reached; empty:
    there is none."""
    if metric.metric == ACCURACY:
        return f"--target_accuracy={floor(20 * (came - 0.03)) / 20:g}" if came > 0.08 else ""
    margin = 0.02 * abs(came)
    given = metric._replace(target=float(f"{came - margin if metric.most else came + margin:.3g}"))
    short = f"{given.metric}:{given.target:g}"
    return f"--target={short if Goal.of(short) == given else given}"


def verdict(model: Trained | None, machine: Trained, few: Result | None, cluster: ClusterSpec,
            server: str, noise: float | None = None) -> list[str]:
    """Return the answer in one line, then what to train, what the machines add, how sure that is.

    Args:
        model: the fastest model, at its best batch; None: none reached the target in every run.
        machine: the fastest machine alone, at its best batch.
        few: the same model at the same batch without the slow machines; None: all matter.
        cluster: all machines.
        server: the flags of the server.
        noise: noise scale of the gradients in batches of `model`, where it was measured.
    """
    alone = machine.result
    on_one = (f"Train on the fastest machine alone: {machine.settings}.")
    if model is None:
        return [f"it does not pay: no model reached the target in every run; the fastest machine "
                f"alone did, in {_time(alone)} at batch {machine.batch}", on_one,
                "More --epochs give the models longer; --verbose shows how far each came."]
    best = model.result
    ratio = alone.seconds / best.seconds
    speeds = cluster.pace / fastest(cluster, 1).pace
    adds = f"All machines together have {speeds:.2f} times the speed of the fastest"
    if noise is not None:
        adds += (f", of which the noise of the gradients allows about "
                 f"{bounded_by_noise(speeds, noise):.1f} at batch {model.batch}")
    if few is not None and few.reached:
        slow = cluster.size - fast_ones(cluster)
        adds += (f". Without the slowest {slow} of {cluster.size} it takes {_time(few)}: "
                 + ("they are worth their place" if best.faster(few) else
                    "they add nothing that these runs show"))
    if ratio >= PAYS and best.faster(alone):
        pays = "may pay" if len(best.runs) == 1 and ratio < SURELY else "pays"
        said = [f"it {pays}: {ratio:.1f} times the fastest machine alone, with {best.label} at "
                f"batch {model.batch} ({_time(best)} {best.goal}; alone {_time(alone)}, at batch "
                f"{machine.batch})", f"Train with {server}; in the script {model.settings}."]
    else:
        said = [f"it does not pay: {_time(best)} {best.goal} with all machines ({best.label} at "
                f"batch {model.batch}), {_time(alone)} with the fastest alone (at batch "
                f"{machine.batch})", on_one]
    return [*said, f"{adds}.", _how_sure(best)]


def _how_sure(best: Result) -> str:
    if best.target is None:  # the goal is time alone
        return ("How much is learned in that time is another question: without --model=timing a "
                "network is trained. --verbose shows all models.")
    trained = best.runs[0].settings
    what = (f"{trained['task']}" if "task" in trained else
            f"{trained['model']} on {trained['dataset']} (--model, --dataset) by "
            f"{trained['optimizer'] or 'plain SGD'} (--optimizer)")
    return (f"Measured with {what}"
            + (", one seed, so small differences may be chance (--seeds=3)" if len(best.runs) == 1
               else f", {len(best.runs)} seeds") + "; --verbose shows all rules and batches.")


def _time(one: Result) -> str:
    return f"{one.seconds:,.1f} s" if one.seconds >= 10 else f"{one.seconds:.3g} s"


def own_data(cluster: ClusterSpec, data: SharedData) -> str:
    """Return a line on the same training where each worker makes its own epochs.

    The slowest machine's steps are the least time that it can take.
    """
    slowest = max(group.mini_batch for group in cluster.groups)
    lone = fastest(cluster, 1).groups[0].mini_batch * data.epochs * ceil(data.n / data.batch)
    part, whole = (slowest * data.epochs * ceil(ceil(data.n / share) / data.batch)
                   for share in (cluster.size, 1))
    return (f"Without shared data each worker trains its own epochs, and the fast ones wait at the "
            f"end: at least {part:.1f} s on a part each (worth {lone / part:.2f} of the fastest "
            f"machine's steps alone, {lone:.1f} s), at least {whole:.1f} s on all data each "
            f"(worth {lone / whole:.2f}).")


def _listed(words: Iterable[object]) -> str:
    *first, last = map(str, words)
    return f"{', '.join(first)} and {last}"
