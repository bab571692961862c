"""The worth of a cluster: compared with its fastest machine and with its fast machines.

A comparison of models on a cluster does not say whether the cluster was needed. So `--advise` also
trains on the fastest machine alone, without a server or a network, and by the best model once more
without the slow machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil

from wbsp.core.messages import SharedData
from wbsp.simulate.study.compare import Result
from wbsp.simulate.study.runs import Plan
from wbsp.simulate.study.spec import ClusterSpec
from wbsp.simulate.world.machine import INF

NEARLY = 0.95  # of the sum of all speeds, which the fast machines have between them
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

    seconds: t, of a gradient on each machine
    noise:   S = sigma^2 / eps, in units of a worker's batch

    Source: Tyurin, Richtarik, NeurIPS 2023, arXiv 2305.12387; Tyurin, arXiv 2408.04929 [abstract;
    the formula from memory]. It holds for workers that share their data, plain SGD, and transfers
    that cost nothing, up to constants that are left out here.
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


def verdict(best: Result, alone: Result, few: Result | None, cluster: ClusterSpec,
            noise: float | None = None) -> str:
    """Return the advice: what to take, its worth, and which machines add nothing.

    Args:
        best: the model that was fastest.
        alone: the fastest machine alone.
        few: the same model without the slow machines; None: all matter.
        cluster: all machines.
        noise: noise scale of the gradients in batches, where it was measured.
    """
    timed = best.target == INF  # the goal is time alone: no network was trained
    if not best.reached:
        return ("No model reached the target in every run; the fastest machine alone "
                + (f"did, in {alone.seconds:.1f} s." if alone.reached else "did not, either."))
    said, seeds = [], " beyond the seeds" if len(best.runs) > 1 else ""
    if alone.reached and not best.faster(alone):
        said.append(f"Take the fastest machine alone ({alone.seconds:.1f} s): the best model of "
                    f"the cluster, {best.label}, is not faster{seeds} ({best.seconds:.1f} s).")
    else:
        worth = (f"worth {alone.seconds / best.seconds:.1f} of the fastest machine alone "
                 f"({alone.seconds:.1f} s)" if alone.reached else
                 "which the fastest machine alone did not in this run")
        speeds = cluster.pace / fastest(cluster, 1).pace
        said.append((f"{best.label} takes {best.seconds:.1f} s {best.goal}, " if timed else
                     f"Take {best.label}: it reaches the target in {best.seconds:.1f} s, ")
                    + f"{worth}. The speeds of all machines add up to {speeds:.2f} of that one's"
                    + ("." if noise is None else ", of which the noise of the gradients allows "
                       f"about {bounded_by_noise(speeds, noise):.1f} at this batch size "
                       f"(its scale is about {noise:.0f} batches)."))
        if few is not None and few.reached:
            slow = cluster.size - fast_ones(cluster)
            nothing = not best.faster(few)
            said.append(f"Without the slowest {slow} of {cluster.size} machines it takes "
                        f"{few.seconds:.1f} s: " + (
                            "they add nothing that these runs show." if nothing else
                            "they are worth their place."))
    if timed:
        said.append("How much is learned in that time is another question: without --model=timing "
                    "a network is trained.")
    else:
        said.append("All at one batch size and learning rate; a machine alone may have better "
                    "ones, or gain by momentum"
                    + ("; one seed, so small differences may be chance." if len(best.runs) == 1
                       else "."))
    return " ".join(said)


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
