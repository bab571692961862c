"""Trainings in which all machines hold one model: one update after the other.

Where each update is a step of the optimizer on the mean gradient of all examples of all machines,
the machines together are one machine with that batch. What differs is when an update is there, so
such a rival is a law of time: an iterator of `Update`.

The outer step is the same for all of them: x(k+1) = x(k) + step(u), where u is what `every` steps
of the optimizer change. After each step it is momentum at another place; every 100 steps it is SNOO
(Kallusky et al., "SNOO: Step-K Nesterov outer optimizer", arXiv 2510.15830 [abstract]: a lone
machine that keeps the model, and makes a Nesterov step on its own difference).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rivals.ground import Ground
from wbsp.core.outer_optimizer import OuterOptimizer


class Update(NamedTuple):
    """A step of the optimizer that all machines make together.

    Attributes:
        end: seconds at which each has the new model.
        samples: worker -> its examples in the mean gradient.
    """

    end: float
    samples: dict[int, int]


def train(ground: Ground, law: Iterator[Update], outer: OuterOptimizer | None = None,
          every: int = 1) -> None:
    """Train by the updates of `law` that end in time.

    Args:
        ground: what is trained.
        law: when updates are there.
        outer: the outer step; None: there is none.
        every: steps of the optimizer between two outer steps.
    """
    values: Any = ground.initial
    base, state, now = values, ground.task.make_state(), 0.0
    ground.look(now, values)
    for steps, update in enumerate(law, 1):
        if update.end > ground.until:
            break
        now, rate = update.end, ground.rate_now
        indices = np.concatenate([ground.draw(worker, count)
                                  for worker, count in update.samples.items()])
        values, state, _ = ground.task.step(values, state, indices, rate)
        if outer is not None and steps % every == 0:
            moved = np.array(values, np.float32) - np.asarray(base)
            values = base = np.asarray(base) + outer.step(moved, 1.0, 0.0)
        ground.look(now, values)
    ground.look(now, values, last=True)
