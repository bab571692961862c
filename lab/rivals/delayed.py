"""Asynchronous local SGD with delayed Nesterov (DN) and dynamic local updates (DyLU).

Source: Liu et al., "Asynchronous local-SGD training for language modeling", 2024, arXiv 2401.09135,
algorithm 3 (DN), algorithm 4 (DyLU), section 3 (grace period) [paper, from notes on it]. With
g = Delta, a worker's difference, and N the delay, as additions to the model:

    worker: fetch x; floor(v / max v * H) steps; send Delta; wait
    server: sum += g
            each N-th: m = beta m + sum / N; sum = 0
                       x += eps ((1 - c N + c) beta m + g / N)
            else:      x += eps (c beta m + g / N)

v is a worker's speed in its last task, and at first its mean. The server sends the new model at
once, or, with a grace period, when no other worker has finished within that time of the first; all
that have finished begin their next tasks together then. Transfers are float32 through the server's
interface. In the paper's table c = 0 and 0.1 are equal, and N is the number of workers or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rivals.ground import Ground
from rivals.learners import Learner, minus, play
from wbsp.simulate.world.clock import Clock
from wbsp.simulate.world.machine import INF, Incarnation


class DelayedNesterov:
    """The server's step.

    Args:
        delay: N.
        rate: eps.
        momentum: beta.
        spread: c, 0 to 1 / N.
    """

    def __init__(self, delay: int, rate: float = 0.7, momentum: float = 0.9, spread: float = 0.0):
        self._delay, self._rate, self._momentum, self._spread = delay, rate, momentum, spread
        self._count = 0
        self._sum: np.ndarray | float = 0.0
        self._m: np.ndarray | float = 0.0

    def step(self, delta: np.ndarray) -> np.ndarray:
        """Return the change of the model."""
        self._sum = self._sum + delta
        self._count += 1
        n, c = self._delay, self._spread
        part = c
        if self._count % n == 0:
            self._m = self._momentum * self._m + self._sum / n
            self._sum = 0.0
            part = 1 - c * n + c
        return np.asarray(self._rate * (part * self._momentum * self._m + delta / n), np.float32)


class Server:
    """The server, and the tasks that it gives to the workers.

    Args:
        ground: what is trained.
        means: worker -> mean seconds of its steps.
        h: steps of the fastest worker's task.
        step: of the server.
        grace: seconds for which a worker's next task waits for others that finish.
    """

    def __init__(self, ground: Ground, means: Sequence[float], h: int, step: DelayedNesterov,
                 grace: float = 0.0):
        self._ground, self._h, self._step, self._grace = ground, h, step, grace
        self.clock = Clock()
        self._network = ground.server.interface(self.clock, ground.machines)
        self._speeds = [1 / mean for mean in means]
        self._present: dict[int, Learner] = {}
        self._finished: list[Learner] = []  # wait for their next tasks
        self.values = ground.initial

    def run(self) -> None:
        """Train until the ground's end."""
        play(self._ground, self.clock, self._come, lambda: self.values)

    def task_of(self, worker: int) -> int:
        """Return the steps of the worker's next task."""
        fastest = max(self._speeds[one] for one in self._present)
        return max(1, math.floor(self._speeds[worker] / fastest * self._h + 1e-9))

    def _come(self, worker: int, presence: Incarnation) -> None:
        learner = Learner(self._ground, self.clock, worker, self.values)
        self._present[worker] = learner
        if presence.end < INF:
            self.clock.at(presence.end, self._go, learner)
        self._give(learner)

    def _go(self, learner: Learner) -> None:
        learner.alive = False
        if self._present.get(learner.worker) is learner:
            del self._present[learner.worker]

    def _give(self, learner: Learner) -> None:
        if learner.alive:
            self._network.send(learner.machine, self._ground.size, self._begin, learner,
                               self.values, self.task_of(learner.worker))

    def _begin(self, learner: Learner, values: np.ndarray, steps: int) -> None:
        if not learner.alive:
            return
        learner.values, begun = values, self.clock.now

        def stepped(left: int) -> None:
            if left:
                learner.step(lambda: stepped(left - 1))
                return
            self._speeds[learner.worker] = steps / max(self.clock.now - begun, 1e-9)
            self._network.push(learner.machine, self._ground.size, self._arrived, learner,
                               minus(learner.values, values))

        stepped(steps)

    def _arrived(self, learner: Learner, delta: np.ndarray) -> None:
        if not learner.alive:
            return  # its update was on the way
        self.values = self.values + self._step.step(delta)
        self._finished.append(learner)
        if not self._grace:
            self._next()
        elif len(self._finished) == 1:
            self.clock.after(self._grace, self._next)

    def _next(self) -> None:
        finished, self._finished = self._finished, []
        for learner in finished:
            self._give(learner)
