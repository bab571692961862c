"""Outer optimizers: the step from the pending sum of a commit to the change of the model.

Every version is W_{v+1} = W_v + step(pending). `identity`, the default, is the rule of all
published models here: the pending sum itself. The others use the negative pending sum as the
gradient of an outer optimizer, as DiLoCo does; they are meant for models whose versions are means
of the workers' progress. This module is pure: without synchronization models, sockets and clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from wbsp.sync.base import Option, SyncModel, set_options


class OuterOptimizer:
    """W_{v+1} = W_v + pending."""

    name: ClassVar[str] = "identity"
    OPTIONS: ClassVar[dict[str, Option]] = {}
    NUMBERS: ClassVar[frozenset[str]] = frozenset()  # entries of a state that are one number

    def __init__(self, **options: Any):
        """Set the options.

        Args:
            **options: text or Python values.

        Raises:
            ValueError: an option is unknown or bad; one line.
        """
        set_options(self, options)

    def settings(self) -> dict[str, Any]:
        """Return this optimizer's entries of run.json; empty for identity, the default."""
        options = {key: getattr(self, key) for key in self.OPTIONS}
        return {"outer": {"name": self.name, **options}} if type(self) is not OuterOptimizer else {}

    def step(self, pending: np.ndarray, weight: float = 1.0, steps: float = 0.0) -> np.ndarray:
        """Return the change of W.

        Args:
            pending: float32 [size]; its memory may be the result's.
            weight: of the updates in it, together.
            steps: of an update in it, in their mean by weight; steps of plain SGD count 0.
        """
        return pending

    def reach(self, pending: float, state: dict[str, float]) -> tuple[float, dict[str, float]]:
        """Bound the magnitudes of a step.

        Args:
            pending: bound of the pending sum's values.
            state: bounds of the state's values, by name.

        Returns:
            Bounds of the values of the change of W, and of the state after it, by name.
        """
        return pending, {}

    def state(self) -> dict[str, np.ndarray]:
        """Return the state that the next step depends on.

        Returns:
            Name -> float32 [size], or [1] for `NUMBERS`; never written again.
        """
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a `state`."""


class Nesterov(OuterOptimizer):
    """Nesterov momentum over the versions.

        m = momentum * m + pending;  W += rate * (pending + momentum * m)

    Source: DiLoCo, Douillard et al. 2023, arXiv 2311.08105 (rate 0.7, momentum 0.9) [paper]. There
    a version is the mean over workers of equal speed after H steps each; here the synchronization
    model determines the pending sum.
    """

    name = "nesterov"
    OPTIONS = {"rate": Option(0.7, "outer learning rate", low=0),
               "momentum": Option(0.9, "outer momentum", low=0, high=1)}

    rate: float
    momentum: float

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._velocity: np.ndarray | None = None  # m; a new array at each step

    def step(self, pending: np.ndarray, weight: float = 1.0, steps: float = 0.0) -> np.ndarray:
        old = self._velocity
        m = pending.copy() if old is None else self.momentum * old + pending
        self._velocity = m
        pending += np.float32(self.momentum) * m
        pending *= np.float32(self.rate)
        return pending

    def reach(self, pending: float, state: dict[str, float]) -> tuple[float, dict[str, float]]:
        m = self.momentum * state.get("velocity", 0.0) + pending
        return max(1.0, self.rate) * (pending + self.momentum * m), {"velocity": m}

    def state(self) -> dict[str, np.ndarray]:
        return {} if self._velocity is None else {"velocity": self._velocity}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self._velocity = state.get("velocity")


class QuasiHyperbolic(OuterOptimizer):
    """Quasi-hyperbolic momentum: a part of each pending sum at once, the rest as momentum.

        owed += rate * nu * pending
        W += rate * (1 - nu) * pending + (1 - momentum) * owed;  owed *= momentum

    Over time each pending sum moves W by `rate` times itself. `owed` is rate * nu / (1 - momentum)
    times the paper's m; so this also holds where the two change from version to version: if the
    weights of a version's updates have a sum w below 1, because some workers have none in it,
    1 - nu is 1 / w times as large. Its step is that of the fewer workers. The momentum lasts
    1 / (1 - momentum) versions; where the workers' optimizer has momentum, too, and an update has
    k steps, at least w outlast / k^0.5 versions.
    Source: QHM, Ma and Yarats, ICLR 2019, arXiv 1810.06801 (momentum 0.999, nu 0.7) [paper], there
    of gradients; as an outer step, w and k: ours.
    """

    name = "qhm"
    OPTIONS = {"rate": Option(1.0, "outer learning rate", low=0),
               "momentum": Option(0.999, "outer momentum", low=0, high=1),
               "nu": Option(0.7, "part of a step that is momentum's", low=0, high=1),
               "outlast": Option(0.0, "versions that momentum lasts at least, for updates of one "
                                 "step by optimizers with momentum", low=0)}

    rate: float
    momentum: float
    nu: float
    outlast: float

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._owed: np.ndarray | None = None  # a new array at each step

    def step(self, pending: np.ndarray, weight: float = 1.0, steps: float = 0.0) -> np.ndarray:
        part = min(weight, 1.0) or 1.0
        at_once = min(1.0, (1 - self.nu) / part)
        paid = self.paid(steps, part)
        owed = np.float32(self.rate * (1 - at_once)) * pending
        if self._owed is not None:
            owed += self._owed
        pending *= np.float32(self.rate * at_once)
        pending += np.float32(paid) * owed
        owed *= np.float32(1 - paid)
        self._owed = owed
        return pending

    def reach(self, pending: float, state: dict[str, float]) -> tuple[float, dict[str, float]]:
        owed = self.rate * self.nu * pending + state.get("owed", 0.0)
        # The pending sum, too, before the terms are made of it; few workers' counts at once.
        return max(1.0, self.rate) * pending + owed, {"owed": (1 - self.paid(1.0)) * owed}

    def paid(self, steps: float, weight: float = 1.0) -> float:
        """Return the part of what is owed that a version pays; `steps` and `weight` as in `step`,
        but a weight of at most 1."""
        paid = 1 - self.momentum
        if steps and self.outlast:
            paid = min(paid, max(steps, 1.0) ** 0.5 / (weight * self.outlast))
        return paid

    def state(self) -> dict[str, np.ndarray]:
        return {} if self._owed is None else {"owed": self._owed}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self._owed = state.get("owed")


class DelayedNesterov(Nesterov):
    """Nesterov momentum that changes only at every `delay`-th version.

        sum += pending
        every delay-th: m = momentum * m + sum; sum = 0;  W += rate * (pending + momentum * m)
        else:                                             W += rate * pending

    For models that make a version of each push, where ordinary momentum amplifies stale updates.
    Source: Liu et al. 2024, arXiv 2401.09135, algorithm 3 [from published descriptions]. There a
    push is divided by `delay`, here by N, the model's weight: delay = N is the paper's.
    The paper's variant that spreads the momentum over the versions between is not implemented.
    """

    name = "delayed-nesterov"
    OPTIONS = {**Nesterov.OPTIONS,
               "delay": Option(8, "versions between two changes of the momentum", low=1)}
    NUMBERS = frozenset({"versions"})

    delay: int

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._sum: np.ndarray | None = None  # of the pending sums since the momentum changed
        self._versions = 0  # in that sum

    def step(self, pending: np.ndarray, weight: float = 1.0, steps: float = 0.0) -> np.ndarray:
        self._sum = pending.copy() if self._sum is None else self._sum + pending
        self._versions += 1
        if self._versions == self.delay:
            old = self._velocity
            m = self._sum if old is None else self.momentum * old + self._sum
            self._velocity = m
            self._sum = None
            self._versions = 0
            pending += np.float32(self.momentum) * m
        pending *= np.float32(self.rate)
        return pending

    def reach(self, pending: float, state: dict[str, float]) -> tuple[float, dict[str, float]]:
        velocity = state.get("velocity", 0.0)
        total = state.get("sum", 0.0) + pending
        versions = state.get("versions", 0.0) + 1
        if versions < self.delay:
            return max(1.0, self.rate) * pending, {"velocity": velocity, "sum": total,
                                                   "versions": versions}
        m = self.momentum * velocity + total
        return max(1.0, self.rate) * (pending + self.momentum * m), {"velocity": m}

    def state(self) -> dict[str, np.ndarray]:
        total = {} if self._sum is None else {"sum": self._sum}
        return super().state() | total | {"versions": np.array([self._versions], np.float32)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        super().restore(state)
        self._sum = state.get("sum")
        self._versions = int(state["versions"][0]) if "versions" in state else 0


OUTER_OPTIMIZERS: dict[str, type[OuterOptimizer]] = {
    one.name: one for one in (OuterOptimizer, Nesterov, QuasiHyperbolic, DelayedNesterov)}
SINGLE_NUMBERS = frozenset[str]().union(*(one.NUMBERS for one in OUTER_OPTIMIZERS.values()))


def create_outer(name: str, **options: Any) -> OuterOptimizer:
    """Return a new outer optimizer by its name.

    Raises:
        ValueError: the name is unknown, or an option is bad; one line.
    """
    if name not in OUTER_OPTIMIZERS:
        raise ValueError(f"unknown outer optimizer {name!r}; known: {', '.join(OUTER_OPTIMIZERS)}")
    try:
        return OUTER_OPTIMIZERS[name](**options)
    except ValueError as error:
        raise ValueError(f"outer step {error}") from None


def outer_of(model: type[SyncModel], workers: int, name: str | None,
             options: Mapping[str, Any]) -> OuterOptimizer:
    """Return a new outer optimizer: the one named, or else the default of `model`.

    Args:
        model: class of the synchronization model.
        workers: number of workers, on which the model's default options may depend.
        name: of the optimizer; None: the model's default.
        options: override the model's default options.

    Raises:
        ValueError: the name is unknown, or an option is bad; one line.
    """
    if name is None:
        name, options = model.outer, {**model.outer_options(workers), **options}
    return create_outer(name, **options)
