"""Room on the cluster: what each process of a run needs, and a placement group that provides it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

Needs = Mapping[str, float]  # resource of Ray -> amount, such as {"CPU": 4, "GPU": 1}
STRATEGIES = ("SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK")


class RunError(RuntimeError):
    """A run cannot start or finish; the message is one line."""


def checked(who: str, needs: Needs) -> dict[str, float]:
    """Return the needs without zeros. Raises ValueError, in one line, for wrong needs."""
    if not isinstance(needs, Mapping) or any(
            not isinstance(name, str) or not isinstance(amount, Real) or isinstance(amount, bool)
            or not 0 <= amount < float("inf") for name, amount in needs.items()):
        raise ValueError(f"{who} needs {needs!r}: give amounts of resources, such as "
                         '{"CPU": 4, "GPU": 1}')
    found = {name: float(amount) for name, amount in needs.items() if amount}
    if not found:
        raise ValueError(f'{who} needs nothing; give it something, such as {{"CPU": 1}}')
    return found


def of_workers(workers: int | Sequence[Needs]) -> list[dict[str, float]]:
    """Return the needs of each worker; by default a CPU each. Raises ValueError."""
    if isinstance(workers, int) and workers > 0:
        return [{"CPU": 1.0} for _ in range(workers)]
    if isinstance(workers, (int, str, Mapping)) or not workers:
        raise ValueError(f"workers is {workers!r}: give their number, or what each needs, such as "
                         '[{"GPU": 1}, {"CPU": 4}]')
    return [checked(f"worker {index}", needs) for index, needs in enumerate(workers)]


@contextlib.contextmanager
def reserved(needs: Mapping[str, dict[str, float]], strategy: str,
             seconds: float) -> Iterator[PlacementGroup]:
    """Yield a placement group with a bundle for each process (name -> needs), in this order.

    Raises RunError if the cluster has no room within that many seconds.
    """
    group = placement_group(list(needs.values()), strategy=strategy)
    try:
        if not group.wait(seconds):
            asked = Counter((who.partition(" ")[0], _words(need)) for who, need in needs.items())
            pieces = ", ".join(f"{count} x {who} of {need}" for (who, need), count in asked.items())
            nodes = sum(node["Alive"] for node in ray.nodes())
            raise RunError(f"no room on the cluster within {seconds:g} s ({strategy}): asked for "
                           f"{pieces}; it has {_words(ray.cluster_resources())} on {nodes} "
                           f"{'node' if nodes == 1 else 'nodes'}, and free of it "
                           f"{_words(ray.available_resources())}")
        yield group
    finally:
        remove_placement_group(group)


def actor_options(needs: Mapping[str, float]) -> dict[str, object]:
    """Return an actor's needs as options of Ray."""
    rest = {name: amount for name, amount in needs.items() if name not in ("CPU", "GPU", "memory")}
    return {"num_cpus": needs.get("CPU", 0), "num_gpus": needs.get("GPU", 0),
            **({"memory": needs["memory"]} if "memory" in needs else {}), "resources": rest}


def hosts_with(needs: Mapping[str, float]) -> list[str]:
    """Return addresses of the nodes that are large enough for these needs, also if busy now."""
    return sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]
                   and all(node["Resources"].get(name, 0) >= amount
                           for name, amount in needs.items())})


def _words(resources: Mapping[str, float]) -> str:
    """Return resources as text, without those that Ray uses internally."""
    shown = {name: amount for name, amount in sorted(resources.items())
             if ":" not in name and "group" not in name and "memory" not in name}
    return ", ".join(f"{name} {amount:g}" for name, amount in shown.items()) or "nothing"
