"""Decoupled DiLoCo: fragments that are merged at their own times, by learners that never wait.

Source: Douillard et al., "Decoupled DiLoCo for resilient distributed pre-training", 2026, arXiv
2604.21428 [abstract]; rule and numbers from a public re-implementation and its notes [code].

    learner: at its step t, one fragment f is due (each once in H steps, evenly): send theta_f
             a merged Theta_f has arrived, and tau steps are over since it sent f?
                 theta_f = alpha theta_f + (1 - alpha) Theta_f
    syncer:  K learners are in the merge of f, and then the grace window is over, or all are in it?
                 v_m = theta_m - Theta_f;  weight w_m = tokens^2 / steps
                 merged, tensor by tensor: length sum w |v| / sum w
                                           direction of sum w v / |v|
                 Theta_f += Nesterov (0.7, 0.9) of the merged, with a momentum for each fragment
                 send Theta_f to all

    grace window = gamma * slack,  slack = tau * xi_step - (xi_quorum + xi_sync)

xi are moving averages: of the seconds of a step of the fastest learner of a merge, of those from
its first update to its quorum, and of the transfers to and from the syncer [which learner: ours].
Fragments are whole tensors, packed to about equal sizes. A table of embeddings, and a tensor whose
directions cancel, has the weighted mean. Tokens and steps are those since the learner's last update
of f. A learner has two updates on its line at most; one that is due beyond them is left out [ours].
A newcomer copies the whole state of a learner, its optimizer's moments included [code].

Transfers are float32 through the syncer's interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rivals.ground import Ground, Part
from rivals.learners import Learner, play
from wbsp.core.outer_optimizer import Nesterov
from wbsp.simulate.world.clock import Clock
from wbsp.simulate.world.machine import INF, Incarnation

IN_FLIGHT = 2  # updates of a learner on its line
NEWEST = 0.3  # weight of the newest measurement in a moving average
TINY = 1e-12  # length of a direction that is none


class Options(NamedTuple):
    """The numbers of the method.

    Attributes:
        h: steps of a learner in which each fragment is due once.
        fragments: their number, or that of the tensors if these are fewer.
        tau: steps between a fragment's sending and its merged version's taking effect.
        quorum: learners that a merge waits for; 0: half of them.
        gamma: part of the slack for which it then waits for the others.
        alpha: part of the learner's own values that stays.
        rate, momentum: of the outer step.
    """

    h: int = 24
    fragments: int = 24
    tau: int = 2
    quorum: int = 0
    gamma: float = 1.0
    alpha: float = 0.0
    rate: float = 0.7
    momentum: float = 0.9


class Update(NamedTuple):
    """A learner's fragment on its way.

    Attributes:
        values: theta_f.
        tokens: examples since the learner's last update of it.
        steps: likewise.
        step_seconds: mean of these steps.
        sent: seconds.
    """

    values: np.ndarray
    tokens: float
    steps: float
    step_seconds: float
    sent: float

    @property
    def weight(self) -> float:
        """w of the merge."""
        return self.tokens ** 2 / self.steps


@dataclass
class Fragment:
    """A part of the model at the syncer.

    Attributes:
        parts: the tensors in it.
        step: its outer step.
        inside: learner -> its newest update, of the merge that is gathered.
        begun: when the first of them arrived.
        full: a quorum is there; the grace window runs.
    """

    parts: list[Part]
    step: Nesterov
    inside: dict[int, Update] = field(default_factory=dict)
    begun: float = 0.0
    full: bool = False

    def __post_init__(self) -> None:
        self.places = np.concatenate([np.arange(part.begin, part.end) for part in self.parts])
        self.bytes = 4.0 * len(self.places)


def packed(parts: Sequence[Part], count: int) -> list[list[Part]]:
    """Return tensors in at most `count` groups of about equal sizes: the largest first, each into
    the smallest group."""
    groups: list[list[Part]] = [[] for _ in range(min(count, len(parts)))]

    def size(group: list[Part]) -> int:
        return sum(part.end - part.begin for part in group)

    for part in sorted(parts, key=lambda part: part.begin - part.end):
        min(groups, key=size).append(part)
    return groups


def merged(progress: Sequence[np.ndarray], weights: Sequence[float], embedding: bool = False
           ) -> np.ndarray:
    """Return one tensor's merged progress: the mean length along the mean direction.

    Args:
        progress: of each learner, float32 [size].
        weights: of each learner.
        embedding: take the weighted mean.
    """
    shares = np.asarray(weights, np.float64) / np.sum(weights)
    lengths = np.array([np.linalg.norm(v) for v in progress])
    if not embedding and np.all(lengths > TINY):
        way = sum(share / length * v
                  for share, length, v in zip(shares, lengths, progress, strict=True))
        if (norm := np.linalg.norm(way)) > TINY:
            return np.asarray(float(shares @ lengths) / norm * way, np.float32)
    return np.asarray(sum(share * v for share, v in zip(shares, progress, strict=True)), np.float32)


class _Member(Learner):
    """A learner and what it knows of its fragments."""

    def __init__(self, ground: Ground, clock: Clock, worker: int, values: np.ndarray, count: int):
        super().__init__(ground, clock, worker, values)
        self.since = [0] * count  # fragment -> steps at its last update
        self.arrived: dict[int, np.ndarray] = {}  # fragment -> merged values that wait
        self.sending = 0  # updates on the line
        self.computed = [0.0]  # seconds of all steps up to each


class Syncer:
    """The syncer and its learners.

    Args:
        ground: what is trained.
        options: of the method.
    """

    def __init__(self, ground: Ground, options: Options):
        self._ground, self._options = ground, options
        self.clock = Clock()
        self._network = ground.server.interface(self.clock, ground.machines)
        self.values = np.array(ground.initial)
        groups = packed(ground.parts, options.fragments)
        self.fragments = [Fragment(group, Nesterov(rate=options.rate, momentum=options.momentum))
                          for group in groups]
        # The model may stand for a larger one, whose bytes its fragments share.
        self._scale = ground.size / (4.0 * len(self.values))
        self._due = [(n + 1) * options.h // len(groups) % options.h for n in range(len(groups))]
        self._present: dict[int, _Member] = {}
        self._step: float | None = None  # xi
        self._quorum: float | None = None
        self._sync: float | None = None
        self.merges: list[tuple[float, int, list[int]]] = []  # (seconds, fragment, learners)

    def run(self) -> None:
        """Train until the ground's end."""
        play(self._ground, self.clock, self._come, lambda: self.values)

    @property
    def needed(self) -> int:
        """K."""
        n = len(self._present)
        return max(1, min(self._options.quorum or n - n // 2, n))

    @property
    def slack(self) -> float:
        """The seconds that the overlap leaves for a window, perhaps below 0."""
        if self._step is None:
            return 0.0
        return (self._options.tau * self._step
                - ((self._quorum or 0.0) + (self._sync or 0.0)))

    # Learners.

    def _come(self, worker: int, presence: Incarnation) -> None:
        learner = _Member(self._ground, self.clock, worker, self.values.copy(),
                          len(self.fragments))
        if presence.end < INF:
            self.clock.at(presence.end, self._go, learner)
        if not self._present or presence.start == 0:
            self._enter(learner, None)
            return
        peer = next(iter(self._present.values()))
        self._network.send(learner.machine, 3 * self._ground.size, self._enter, learner, peer)

    def _enter(self, learner: _Member, peer: _Member | None) -> None:
        if not learner.alive:
            return
        if peer is not None:
            learner.copy(peer)
        self._present[learner.worker] = learner
        learner.step(lambda: self._stepped(learner))

    def _go(self, learner: _Member) -> None:
        learner.alive = False
        if self._present.get(learner.worker) is learner:
            del self._present[learner.worker]
            for number, fragment in enumerate(self.fragments):
                self._merge_if_due(number, fragment)

    def _stepped(self, learner: _Member) -> None:
        learner.computed.append(learner.computed[-1] + learner.seconds)
        place = learner.steps % self._options.h
        for number, due in enumerate(self._due):
            if due == place and learner.sending < IN_FLIGHT:
                self._send(learner, number)
        self._adopt(learner)
        learner.step(lambda: self._stepped(learner))

    def _send(self, learner: _Member, number: int) -> None:
        fragment, since = self.fragments[number], learner.since[number]
        steps = learner.steps - since
        update = Update(np.asarray(learner.values)[fragment.places],
                        steps * self._ground.batch, steps,
                        (learner.computed[learner.steps] - learner.computed[since]) / steps,
                        self.clock.now)
        learner.since[number] = learner.steps
        learner.sending += 1
        self._network.push(learner.machine, fragment.bytes * self._scale, self._received, learner,
                           number, update)

    def _adopt(self, learner: _Member) -> None:
        """Let merged fragments take effect whose time has come."""
        ready = [number for number in learner.arrived
                 if learner.steps - learner.since[number] >= self._options.tau]
        if not ready:
            return
        alpha, values = self._options.alpha, np.array(learner.values, np.float32)
        for number in ready:
            places = self.fragments[number].places
            values[places] = alpha * values[places] + (1 - alpha) * learner.arrived.pop(number)
        learner.values = values

    # The syncer.

    def _received(self, learner: _Member, number: int, update: Update) -> None:
        learner.sending -= 1
        if not learner.alive:
            return
        fragment, now = self.fragments[number], self.clock.now
        if not fragment.inside:
            fragment.begun = now
        before = fragment.inside.get(learner.worker)
        if before is not None:
            update = update._replace(tokens=update.tokens + before.tokens,
                                     steps=update.steps + before.steps)
        fragment.inside[learner.worker] = update
        self._merge_if_due(number, fragment)

    def _merge_if_due(self, number: int, fragment: Fragment) -> None:
        now = self.clock.now
        if not fragment.inside or len(fragment.inside) < self.needed:
            return
        missing = self._present.keys() - fragment.inside.keys()
        if not fragment.full:
            fragment.full = True
            self._quorum = _averaged(self._quorum, now - fragment.begun)
            window = self._options.gamma * self.slack
            if window > 0 and missing:
                self.clock.after(window, self._merge, number, fragment.begun)
                return
            missing = set()
        if not missing:
            self._merge(number, fragment.begun)

    def _merge(self, number: int, begun: float) -> None:
        fragment, now = self.fragments[number], self.clock.now
        if not fragment.inside or fragment.begun != begun:
            return  # all came before the window was over
        updates, places = fragment.inside, fragment.places
        base, weights = self.values[places], [one.weight for one in updates.values()]
        progress = [one.values - base for one in updates.values()]
        whole, first = np.empty_like(base), 0
        for part in fragment.parts:
            last = first + part.end - part.begin
            whole[first:last] = merged([one[first:last] for one in progress], weights,
                                       part.embedding)
            first = last
        self.values = self.values.copy()
        self.values[places] = base + fragment.step.step(whole)
        self.merges.append((now, number, sorted(updates)))
        self._step = _averaged(self._step, min(one.step_seconds for one in updates.values()))
        fragment.inside, fragment.full = {}, False
        for learner in self._present.values():
            self._network.send(learner.machine, fragment.bytes * self._scale, self._delivered,
                               learner, number, self.values[places], now)

    def _delivered(self, learner: _Member, number: int, values: np.ndarray, sent: float) -> None:
        # The way there takes as long as the way back.
        self._sync = _averaged(self._sync, 2 * (self.clock.now - sent))
        if learner.alive:
            learner.arrived[number] = values


def _averaged(old: float | None, new: float) -> float:
    return new if old is None else old + NEWEST * (new - old)
