#!/usr/bin/env python
"""How much of the gradients' noise an outer step passes on, where updates are a version old.

    python lab/outer_step.py        # the tables of docs/explanation/outer-step.md

One direction of the loss, N equal workers, the mean of what they do. Between two versions a worker
that starts at x goes the part c of the way to the goal at 0, and noise xi of variance c (2 - c)
comes on top: alone it would stay at variance 1. Under `auto` an update is a version old, and the
worker keeps it:

    p(v) = -c (W(v-1) + p(v-1)) + xi(v)        W(v+1) = W(v) + step(p(v))

Under a barrier p(v) = -c W(v) + xi(v). A row shows the variance of W in the long run: what stands
between the model and its goal.

In the second table the worker has momentum, which goes on when it takes up a version:

    u = momentum u - (1 - momentum) h x + xi        x = x + u

for the steps of a period, each with the part h of the way. A row shows the variance of W in the
worst direction, as a multiple of that of the mean under a barrier.
"""

import sys
from collections.abc import Callable

import numpy as np

from wbsp.core.outer_optimizer import QuasiHyperbolic
from wbsp.sync.auto import Auto

MOMENTUM = 0.9  # of a worker
STEPS = 1, 2, 4, 8, 16, 64  # of a worker in a period
STEP_PARTS = 0.002, 0.005, 0.01, 0.02, 0.03, 0.06, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.2, 1.5
PARTS = 0.02, 0.1, 0.3, 0.5, 0.8, 1.0, 1.3  # c: flat directions first; above 1 a worker overshoots

Step = tuple[float, float, float]  # momentum, now, later: m = momentum m + p; now p + later m
Rule = Callable[[int], Step]  # by the steps of a period, with momentum; 0: without


def qhm(rate: float, momentum: float, nu: float) -> Step:
    return momentum, rate * (1 - nu), rate * nu * (1 - momentum)


def mean(times: float) -> Rule:
    return lambda steps: (0, times, 0)


def nesterov(rate: float, momentum: float) -> Rule:
    return lambda steps: (momentum, rate, rate * momentum)


def auto(workers: int) -> Rule:
    outer = QuasiHyperbolic(**Auto.outer_options(workers))
    return lambda steps: qhm(outer.rate, 1 - outer.paid(steps), outer.nu)


def variance(part: float, step: Step, late: bool) -> float:
    """Return the variance of W in the long run; infinity if W diverges."""
    momentum, now, later = step
    # The state: W(v), W(v-1), m(v), p(v-1).
    p = np.array([0, -part, 0, -part] if late else [-part, 0, 0, 0], float)
    m = np.array([0, 0, momentum, 0]) + p
    a = np.array([np.array([1, 0, 0, 0]) + now * p + later * m, [1, 0, 0, 0], m, p])
    x = np.array([now + later, 0, 1, 1]) * (part * (2 - part)) ** 0.5
    return long_run(a, x[:, None])


def variance_with_momentum(part: float, steps: int, step: Step,
                           late: bool) -> float:
    """Return the same for a worker with momentum that makes `steps` steps in a period."""
    momentum, now, later = step
    # W(v), W(v-1), m(v), p(v-1), u; then the noise of each step.
    w, before, m, p, u, *noise = np.eye(5 + steps)
    start = x = before + p if late else w
    for xi in noise:
        u = MOMENTUM * u - (1 - MOMENTUM) * part * x + xi
        x = x + u
    p = x - start
    m = momentum * m + p
    a = np.array([w + now * p + later * m, w, m, p, u])
    return long_run(a[:, :5], a[:, 5:])


def long_run(a: np.ndarray, b: np.ndarray) -> float:
    """Return the variance of the first entry of x = a x + b xi; infinity if it diverges."""
    if max(abs(np.linalg.eigvals(a))) > 0.9999:
        return np.inf
    total, power = b @ b.T, a
    for _ in range(30):  # each time twice as many versions
        total = total + power @ total @ power.T
        power = power @ power
    return float(total[0, 0])


def worst(steps: int, step: Step, late: bool) -> float:
    """Return the variance in the worst direction, over that of the mean under a barrier."""
    return max(variance_with_momentum(part, steps, step, late)
               / variance_with_momentum(part, steps, (0, 1, 0), False) for part in STEP_PARTS)


def main() -> int:
    rows = {
        "barrier, the mean": (mean(1), False),
        "barrier, DiLoCo's: nesterov 0.7, 0.9": (nesterov(0.7, 0.9), False),
        "one version late, the mean": (mean(1), True),
        "one version late, the sum of 8": (mean(8), True),
        "one version late, nesterov 1, 0.8": (nesterov(1, 0.8), True),
        "one version late, nesterov 0.7, 0.9": (nesterov(0.7, 0.9), True),
        "one version late, `auto` of 2 workers": (auto(2), True),
        "one version late, `auto` of 5": (auto(5), True),
        "one version late, `auto` of 8": (auto(8), True),
    }
    for columns, measure in ((PARTS, lambda part, step, late: variance(part, step(0), late)),
                             (STEPS, lambda n, step, late: worst(n, step(n), late))):
        print("| step | moves by | " + " | ".join(f"{one:g}" for one in columns) + " |\n"
              + "|---" * (len(columns) + 2) + "|")
        for name, (step, late) in rows.items():
            momentum, now, later = step(0)
            cells = [f"{now + later / (1 - momentum):.1f}",
                     *(f"{found:.1f}" if np.isfinite(found := measure(one, step, late))
                       else "diverges" for one in columns)]
            print(f"| {name} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
