"""Machines that train local steps of their own, in virtual time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from rivals.ground import Ground
from wbsp.simulate.world.clock import Clock
from wbsp.simulate.world.machine import Incarnation


class Learner:
    """A worker with its model, its optimizer's state, and its order of the examples.

    Attributes:
        values: its model x.
        steps: made so far.
        seconds: of its newest step.
        alive: it is present.
    """

    def __init__(self, ground: Ground, clock: Clock, worker: int, values: Any):
        self.worker, self.values = worker, values
        self.machine = ground.machines[worker]
        self.steps, self.seconds, self.alive = 0, 0.0, True
        self._ground, self._clock = ground, clock
        self._state = ground.task.make_state()

    def copy(self, other: Learner) -> None:
        """Take over another worker's model and its optimizer's state."""
        self.values, self._state = other.values, copy.deepcopy(other._state)

    def step(self, after: Callable[[], object]) -> None:
        """Make a step, then call `after`, unless this worker is lost meanwhile."""
        self.seconds = self.machine.seconds(self.steps, self._clock.now)
        self._clock.after(self.seconds, self._trained, after)

    def _trained(self, after: Callable[[], object]) -> None:
        if not self.alive:
            return
        ground, rate = self._ground, self._ground.rate_now
        indices = ground.draw(self.worker, ground.batch)
        self.values, self._state, _ = ground.task.step(self.values, self._state, indices, rate)
        self.steps += 1
        after()


def minus(a: Any, b: Any) -> np.ndarray:
    """Return a - b, float32 [size]."""
    return np.asarray(a, np.float32) - np.asarray(b, np.float32)


def play(ground: Ground, clock: Clock, come: Callable[[int, Incarnation], object],
         values: Callable[[], Any]) -> None:
    """Let workers come at their times, and look at the model, until the ground's end.

    Args:
        ground: what is trained.
        clock: of all events.
        come: called for each presence of a worker, at its begin.
        values: returns the model.
    """
    for worker, machine in enumerate(ground.machines):
        for presence in machine.incarnations:
            clock.at(presence.start, come, worker, presence)

    def look() -> None:
        ground.look(clock.now, values())
        if clock.now + ground.looks <= ground.until:
            clock.after(ground.looks, look)

    clock.at(0.0, look)
    clock.run(ground.until)
    ground.look(ground.until, values(), last=True)
