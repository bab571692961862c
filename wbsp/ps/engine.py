"""The parameter server without its sockets: a model's decisions, carried out on the store.

The real server and the virtual-time cluster both drive this object, so what one does the other
does. It receives what happened (join, leave, push, time) with the time in seconds, and returns
what each worker is to be told, in order. It never blocks, and reads no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from wbsp.member import COUNTED, Member
from wbsp.ps.store import Ledger, Store
from wbsp.sync.base import Accept, Action, Commit, Direct, Grant, Push, Reject, SyncModel


class Ack(NamedTuple):
    """Answer to one push. `granted` is the version the worker may fetch now, if any."""

    worker: int
    seq: int
    accepted: bool
    reason: str | None = None  # of a rejection
    granted: int | None = None
    hold: bool = False


class Granted(NamedTuple):
    """A worker may fetch: told outside an answer to its own push."""

    worker: int
    version: int


class Directed(NamedTuple):
    """The model's instruction to a worker, outside an answer to its own push."""

    worker: int
    direct: Direct


class CutDecision(NamedTuple):
    """Answer to a worker's question `number`: hand over the progress now, or go on."""

    worker: int
    number: int
    cut: bool


class Stop(NamedTuple):
    """Training is over: finish the step, push what is left, leave."""

    worker: int
    reason: str


class Final(NamedTuple):
    """The last version is there; a worker that has left in good order may fetch it."""

    worker: int
    version: int


Effect = Ack | Granted | Directed | CutDecision | Stop | Final


def _ignore(now: float, kind: str, **fields: Any) -> None:
    """The log of a run that keeps none."""


class Engine:
    """Owns a model, a store and a ledger; used by one thread.

    Nothing starts before `expected` workers have joined (or `start` is called): they begin
    together from W_0. After `stop_samples` pushed samples over all workers everyone is told to
    stop. When the last active worker has finished, the pending rest becomes the final version.
    `log(now, kind, **fields)` hears of everything that happens.
    """

    def __init__(self, model: SyncModel, store: Store, expected: int = 1,
                 stop_samples: float = float("inf"), log: Callable[..., None] = _ignore):
        if expected < 1:
            raise ValueError(f"worker_num must be at least 1, not {expected}")
        self.model, self.store, self.ledger = model, store, Ledger()
        self.expected, self.stop_samples, self.log = expected, stop_samples, log
        self.members: dict[int, Member] = {}
        self._here: set[int] = set()  # the active ones: counting them must not cost O(N)
        self._told: dict[int, CutDecision] = {}  # worker -> answer to its newest question
        self._at_rest: Callable[[float], None] | None = None
        self.started = False
        self.stop_reason: str | None = None
        self.done = False
        self.steps = 0
        self.samples = 0

    @property
    def active(self) -> list[int]:
        """Workers that are here, in the order of their numbers."""
        return sorted(self._here)

    def join(self, worker: int, now: float) -> list[Effect]:
        """A worker entered; its grant comes at once, or when everyone has come."""
        member = self.members.setdefault(worker, Member())
        if member.active:
            raise ValueError(f"worker {worker} has joined already")
        member.active, member.finished = True, False
        self._here.add(worker)
        self._told.pop(worker, None)
        self.log(now, "join", worker=worker, version=self.store.latest.version)
        if self.stop_reason is not None:
            return [Stop(worker, self.stop_reason)]
        if self.started:
            return self._act(self.model.join(worker, now), now)
        return self.start(now) if len(self._here) >= self.expected else []

    def start(self, now: float) -> list[Effect]:
        """Begin with those who are here."""
        self.started = True
        self.log(now, "start", workers=self.active)
        actions: list[Action] = []
        for worker in self.active:
            actions += self.model.join(worker, now)
        return self._act(actions, now)

    def leave(self, worker: int, now: float, reason: str, finished: bool = False) -> list[Effect]:
        """A worker finished (in good order) or was lost; the others go on without it."""
        member = self.members[worker]
        member.active, member.finished = False, finished
        self._here.discard(worker)
        self.log(now, "leave", worker=worker, reason=reason, finished=finished)
        effects: list[Effect] = []
        if self.done:  # it came too late for a model, but may have the last
            return [Final(worker, self.store.latest.version)] if finished else []
        # Those who leave because they were told to stop still count: the last pushes of the others
        # keep their weight, instead of one late update moving the final version by N times its due.
        told = finished and self.stop_reason is not None
        if worker in self.model.active and not told:
            effects = self._act(self.model.leave(worker, now), now)
        if not self._here and (self.stop_reason is not None
                               or any(m.finished for m in self.members.values())):
            effects += self._conclude(now)
        return effects

    def push(self, push: Push, update: np.ndarray | None, now: float) -> list[Effect]:
        """An update arrived whole; `update`, float32 [store.size], is the engine's from here on.

        Raises ValueError for a push that no member could have sent; nothing has changed then.
        """
        self.store.check(update)
        worker = push.worker
        if self.ledger.seen(worker, push.seq):
            self.log(now, "duplicate", worker=worker, seq=push.seq)
            return [a for a in [self.ledger.answer(worker)] if a is not None and a.seq == push.seq]
        member = self._started(worker, "pushed")
        actions = self.model.push(push, now)
        member.steps += push.steps
        member.samples += push.samples
        member.seconds += push.seconds
        member.pushes += 1
        member.base = push.base_version
        self.steps += push.steps
        self.samples += push.samples
        effects = self._act(actions, now, push, update)
        if self.samples >= self.stop_samples and self.stop_reason is None:
            effects += self.stop(f"{self.samples:,} samples were trained", now)
        return effects

    def query(self, worker: int, number: int, steps: int, seconds: float,
            now: float) -> list[Effect]:
        """A worker with `steps` uncut ones asks whether to cut; its newest took `seconds`.

        Raises ValueError for a question that no member could have.
        """
        self._started(worker, "asked")
        if self.model.rule.push != "on_query":
            raise ValueError(f"worker {worker} asked whether to cut, which {self.model.name} does "
                             "not decide")
        told = self._told.get(worker)
        if told is not None and told.number == number:
            return [told]
        cut, effects = False, []
        if self.stop_reason is None:
            actions = self.model.query(worker, steps, seconds, now)
            cut = any(type(a) is Direct and a.worker == worker and a.cut for a in actions)
            effects = self._act((a for a in actions if type(a) is not Direct or a.worker != worker),
                                now)
        told = self._told[worker] = CutDecision(worker, number, cut)
        return [*effects, told]

    def tick(self, now: float) -> list[Effect]:
        """The model's alarm time has come."""
        return self._act(self.model.tick(now), now)

    def stop(self, reason: str, now: float) -> list[Effect]:
        """Tell everyone to finish; the first reason counts."""
        if self.stop_reason is not None:
            return []
        self.stop_reason = reason
        self.log(now, "stop", reason=reason, version=self.store.latest.version)
        if not self._here:
            return self._conclude(now)
        return [Stop(worker, reason) for worker in self.active]

    def at_rest(self, act: Callable[[float], None], now: float) -> None:
        """Call `act`(time) once, as soon as nothing is pending: now, or when an event has ended.

        `state` is then that of the newest version. Such a moment comes with every commit, and may
        be over with the next push.
        """
        self._at_rest = act
        self._rest(now)

    def state(self) -> dict[str, Any]:
        """What to go on from beside the newest version's tensors, fit for JSON."""
        return {"version": self.store.latest.version, "next_seq": self.ledger.state(),
                "totals": [self.steps, self.samples],
                **{name: {w: copy(getattr(m, name)) for w, m in self.members.items()}
                   for name in COUNTED}}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state` that may have been JSON, or lack what an older release left out."""
        self.ledger = Ledger({int(w): seq for w, seq in state["next_seq"].items()})
        self.steps, self.samples = state["totals"]
        for name in COUNTED:
            for worker, value in state.get(name, {}).items():
                member = self.members.setdefault(int(worker), Member())
                setattr(member, name, Counter(value) if name == "rejected" else value)

    def _rest(self, now: float) -> None:
        if not self.store.accepted:
            act, self._at_rest = self._at_rest, None
            act(now)

    def _started(self, worker: int, what: str) -> Member:
        member = self.members.get(worker)
        # one that joined after the stop is a member that the model never heard of
        if member is None or not member.active or worker not in self.model.active:
            raise ValueError(f"worker {worker} {what} without having been started")
        return member

    def _conclude(self, now: float) -> list[Effect]:
        if self.store.accepted:
            self._commit(now)
        self.done = True
        version = self.store.latest.version
        return [Final(w, version) for w, m in sorted(self.members.items()) if m.finished]

    def _commit(self, now: float) -> None:
        merged = self.store.accepted
        snapshot = self.store.commit()
        self.log(now, "commit", version=snapshot.version, merged=merged)

    def _act(self, actions: Iterable[Action], now: float, push: Push | None = None,
             update: np.ndarray | None = None) -> list[Effect]:
        """Carry out the model's actions in order; the answer to `push` comes last."""
        effects: list[Effect] = []
        accepted, reason, granted, hold = False, None, None, False
        pusher = push.worker if push else None
        for action in actions:
            kind = type(action)
            if kind is Accept:
                accepted = self.store.accept(update, action.weight)
                if accepted:
                    self.log(now, "accept", worker=push.worker, seq=push.seq,
                             base=push.base_version, version=self.store.latest.version,
                             steps=push.steps,
                             samples=push.samples, seconds=push.seconds, weight=action.weight)
                else:
                    reason = "not finite"
                    self._rejected(push, reason, now)
            elif kind is Commit:
                self._commit(now)
            elif kind is Grant:
                if action.worker == pusher:
                    granted = self.store.latest.version
                else:
                    effects.append(Granted(action.worker, self.store.latest.version))
            elif kind is Reject:
                reason = action.reason
                self._rejected(push, reason, now)
            elif kind is Direct:
                if action.worker == pusher and action.hold:
                    hold, action = True, action._replace(hold=None)
                if action != Direct(action.worker):
                    effects.append(Directed(action.worker, action))
            else:
                raise TypeError(f"{self.model.name} answered with {action!r}, no action")
        if push:
            answer = Ack(push.worker, push.seq, accepted, reason, granted, hold)
            self.ledger.record(push.worker, push.seq, answer)
            effects.append(answer)
        if self._at_rest is not None:
            self._rest(now)
        return effects

    def _rejected(self, push: Push, reason: str, now: float) -> None:
        self.members[push.worker].rejected[reason] += 1
        self.log(now, "reject", worker=push.worker, seq=push.seq, base=push.base_version,
                 reason=reason, steps=push.steps, samples=push.samples, seconds=push.seconds,
                 version=self.store.latest.version)
