"""Rivals by name, with options: `ddp:uneven=true:outer=nesterov:outer.rate=0.7`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rivals import chain, decoupled, delayed, diloco
from rivals.ddp import BUCKETS, ddp
from rivals.ground import Ground
from rivals.hivemind import hivemind
from rivals.lone import lone
from wbsp.core.outer_optimizer import Nesterov, OuterOptimizer, create_outer
from wbsp.sync.base import Option, set_options

_OUTER = "outer."  # before an option of the outer step
_EVERY = Option(1, "steps between two outer steps", low=1)
_FLOATS = Option(4, "bytes of a value on the wire: 2 is a compression hook", low=1, high=4)


class Rival:
    """A rival with its options, each of which is an attribute.

    Attributes:
        name: of the rival.
        OPTIONS: by name.
        steps_outside: it makes an outer step, which an entry may choose.
        alone: it trains on the fastest machine only.
    """

    name: ClassVar[str]
    OPTIONS: ClassVar[dict[str, Option]] = {}
    steps_outside: ClassVar[bool] = True
    alone: ClassVar[bool] = False

    def __init__(self, options: dict[str, str]):
        own = {key: value for key, value in options.items()
               if key != "outer" and not key.startswith(_OUTER)}
        outer = {key.removeprefix(_OUTER): value for key, value in options.items()
                 if key.startswith(_OUTER)}
        set_options(self, own)
        if (outer or "outer" in options) and not self.steps_outside:
            raise ValueError(f"{self.name} has an outer step of its own: leave out outer=")
        if outer and "outer" not in options:
            raise ValueError(f"{self.name}: give outer=NAME beside {_OUTER}{next(iter(outer))}")
        self._outer = options.get("outer"), outer
        self.outer()  # refuses a bad one at once

    def outer(self) -> OuterOptimizer | None:
        """Return a new outer step; None: the entry names none."""
        name, options = self._outer
        return None if name is None else create_outer(name, **options)

    def run(self, ground: Ground, means: Sequence[float]) -> None:
        """Train until the ground's end.

        Args:
            ground: what is trained.
            means: worker -> mean seconds of a step.
        """
        raise NotImplementedError


class Lone(Rival):
    """The fastest machine alone."""

    name, alone = "lone", True
    OPTIONS = {"every": _EVERY}

    every: int

    def run(self, ground: Ground, means: Sequence[float]) -> None:
        chain.train(ground, lone(ground.machines[0], ground.batch), self.outer(), self.every)


class DDP(Rival):
    """A ring in buckets."""

    name = "ddp"
    OPTIONS = {"uneven": Option(False, "shares by speed, in place of equal ones"),
               "buckets": Option(BUCKETS, "parts of the gradients, of equal size", low=1),
               "floats": _FLOATS, "every": _EVERY}

    uneven: bool
    buckets: int
    floats: int
    every: int

    def run(self, ground: Ground, means: Sequence[float]) -> None:
        law = ddp(ground.machines, ground.batch, means, ground.size * self.floats / 4,
                  ground.server.detect_seconds, uneven=self.uneven, buckets=self.buckets)
        chain.train(ground, law, self.outer(), self.every)


class Hivemind(Rival):
    """A target batch."""

    name = "hivemind"
    OPTIONS = {"target": Option(64, "examples of an update, at least", low=1),
               "matchmaking": Option(0.1, "seconds that an average waits for a peer", low=0),
               "floats": _FLOATS, "every": _EVERY}

    target: int
    matchmaking: float
    floats: int
    every: int

    def run(self, ground: Ground, means: Sequence[float]) -> None:
        law = hivemind(ground.machines, ground.batch, self.target, ground.size * self.floats / 4,
                       ground.server.detect_seconds, matchmaking=self.matchmaking)
        chain.train(ground, law, self.outer(), self.every)


class DiLoCo(Rival):
    """Local steps and a ring; its outer step is the published one unless another is named."""

    name = "diloco"
    OPTIONS = {"h": Option(48, "local steps between two means", low=1),
               "by_speed": Option(False, "slower workers make fewer steps")}

    h: int
    by_speed: bool

    def run(self, ground: Ground, means: Sequence[float]) -> None:
        diloco.diloco(ground, means, self.h, self.outer() or Nesterov(), by_speed=self.by_speed)


class Delayed(Rival):
    """Delayed Nesterov and dynamic local updates."""

    name, steps_outside = "dn-dylu", False
    OPTIONS = {"h": Option(48, "steps of the fastest worker's task", low=1),
               "delay": Option(0, "N, updates between two changes of the momentum; 0: workers",
                               low=0),
               "rate": Option(0.7, "outer learning rate", low=0),
               "momentum": Option(0.9, "outer momentum", low=0, high=1),
               "spread": Option(0.0, "c, the part of the momentum between its changes", low=0),
               "grace": Option(0.0, "seconds that a next task waits for others that finish",
                               low=0)}

    h: int
    delay: int
    rate: float
    momentum: float
    spread: float
    grace: float

    def run(self, ground: Ground, means: Sequence[float]) -> None:
        step = delayed.DelayedNesterov(self.delay or len(ground.machines), self.rate,
                                       self.momentum, self.spread)
        delayed.Server(ground, means, self.h, step, self.grace).run()


class Decoupled(Rival):
    """Decoupled DiLoCo as published; wbsp's `decoupled` has no fragments."""

    name, steps_outside = "decoupled-diloco", False
    _USUAL = decoupled.Options()
    OPTIONS = {"h": Option(_USUAL.h, "steps in which each fragment is due once", low=1),
               "fragments": Option(_USUAL.fragments, "parts of the model, at most", low=1),
               "tau": Option(_USUAL.tau, "steps until a merged fragment takes effect", low=0),
               "quorum": Option(_USUAL.quorum, "learners of a merge; 0: half of them", low=0),
               "gamma": Option(_USUAL.gamma, "part of the slack that a merge waits", low=0),
               "alpha": Option(_USUAL.alpha, "part of the learner's values that stays", low=0,
                               high=1),
               "rate": Option(_USUAL.rate, "outer learning rate", low=0),
               "momentum": Option(_USUAL.momentum, "outer momentum", low=0, high=1)}

    def run(self, ground: Ground, means: Sequence[float]) -> None:
        options = decoupled.Options(*(getattr(self, key) for key in decoupled.Options._fields))
        decoupled.Syncer(ground, options).run()


RIVALS: dict[str, type[Rival]] = {one.name: one for one in (Lone, DDP, Hivemind, DiLoCo, Delayed,
                                                            Decoupled)}


def rival(text: str) -> Rival | None:
    """Return the rival that an entry names; None: it names a model of wbsp's.

    Raises:
        ValueError: an option is unknown or bad; one line.
    """
    name, *pairs = text.split(":")
    if name not in RIVALS:
        return None
    options: dict[str, str] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise ValueError(f"{text}: {pair!r} is no option; write name=value")
        options[key] = value
    return RIVALS[name](options)
