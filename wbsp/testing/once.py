"""Exactly once: what every test asserts that loses, repeats or delays messages.

`Pushes` has what one worker has pushed, and with which weight each push counts, as its test has
seen it. It says whether each push was answered once, what they add up to, and which examples are in
those that were accepted. `assert_each` says whether each example was trained once an epoch. What it
is compared with, and how a test sees a push (in virtual time, in the files of processes, by the
acks of agents), is the test's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from wbsp.core.engine import Engine
    from wbsp.core.messages import Outgoing
    from wbsp.sync.base import Push

Spans = Iterable[tuple[int, int]]  # positions of shared data: first, and behind the last


class NotOnce(AssertionError):
    """A push or an example is lost, or counts twice. One line says which."""


@dataclass
class Pushes:
    """The pushes of one worker, or of one site, by their numbers.

    Attributes:
        who: the worker, for errors.
        made: what each held: a number or an array.
        weights: with which each counts; 0: it was rejected, and may have held anything.
        spans: the positions of shared data of which each was made.
    """

    who: str
    made: dict[int, Any] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    spans: dict[int, Spans] = field(default_factory=dict)

    def make(self, seq: int, update: Any, spans: Spans = ()) -> None:
        """Note a push. Raises NotOnce if it is not the next one."""
        if seq != len(self.made):
            raise NotOnce(f"{self.who}: push {seq} came when {len(self.made)} was due")
        self.made[seq], self.spans[seq] = update, spans

    def answer(self, seq: int, weight: float) -> None:
        """Note the answer to a push. Raises NotOnce if there was one before."""
        if seq in self.weights:
            raise NotOnce(f"{self.who}: push {seq} was answered twice")
        self.weights[seq] = weight

    def check(self, lost: int = 0, void: Collection[int] = ()) -> None:
        """Raise NotOnce unless each push was answered, and nothing else was.

        Args:
            lost: number of the last pushes that may have no answer, as they may not have come.
            void: numbers that a server has given up; they may be in neither.
        """
        known = sorted(self.weights)
        due = [seq for seq in range(1 + max(self.made, default=-1))
               if seq in self.made or seq not in void]
        if known != due[:len(known)] or len(known) < len(due) - lost or any(
                seq not in self.made for seq in due):
            raise NotOnce(f"{self.who} has made the pushes {sorted(self.made)}, and was answered "
                          f"{known}")

    def parts(self, unit: float = 1.0) -> list[Any]:
        """What each accepted push adds to the model, in float64: unit * weight * what it held."""
        return [unit * weight * np.asarray(self.made[seq], np.float64)
                for seq, weight in self.weights.items() if weight]

    def total(self, unit: float = 1.0) -> Any:
        """The sum of `parts`; 0.0: none was accepted."""
        return sum(self.parts(unit), 0.0)

    @property
    def plain(self) -> Any:
        """The sum of what the accepted pushes held."""
        return sum((np.asarray(self.made[seq], np.float64)
                    for seq, weight in self.weights.items() if weight), 0.0)

    @property
    def trained(self) -> Counter[int]:
        """How often each position is in accepted pushes."""
        return in_spans(span for seq, weight in self.weights.items() if weight
                        for span in self.spans[seq])


class EnginePushes:
    """The pushes that reach an engine; its `log` must be called as that of the engine.

    Attributes:
        of: worker -> its pushes.
    """

    def __init__(self) -> None:
        self.of: dict[int, Pushes] = {}

    def watch(self, engine: Engine) -> None:
        """Note each push that reaches this engine from now on."""
        push = engine.push

        def noted(one: Push, update: Any, now: float, fetch: int = 0) -> list[Outgoing]:
            pushes = self.of.setdefault(one.worker, Pushes(f"worker {one.worker}"))
            pushes.make(one.seq, np.array(update), one.spans or ())
            return push(one, update, now, fetch)
        vars(engine).update(push=noted)

    def log(self, now: float, kind: str, **fields: Any) -> None:
        """Note the answer of which an engine's event tells."""
        if kind in ("accept", "reject"):
            self.of[fields["worker"]].answer(fields["seq"], fields.get("weight", 0.0))

    def check(self) -> None:
        """Raise NotOnce unless each push was answered once."""
        for pushes in self.of.values():
            pushes.check()

    @property
    def total(self) -> Any:
        """The sum of weight * update over all accepted pushes."""
        return sum((pushes.total() for pushes in self.of.values()), 0.0)

    @property
    def plain(self) -> Any:
        """The sum of all accepted updates, without their weights."""
        return sum((pushes.plain for pushes in self.of.values()), 0.0)

    @property
    def trained(self) -> Counter[int]:
        """How often each position is in accepted pushes."""
        return sum((pushes.trained for pushes in self.of.values()), Counter())


def in_spans(spans: Spans) -> Counter[int]:
    """How often each position is in these."""
    return Counter(g for first, behind in spans for g in range(first, behind))


def differences(trained: Mapping[int, float] | np.ndarray, number: int,
                times: int = 1) -> tuple[Counter[int], Counter[int]]:
    """Which of 0 ... number - 1 was trained more, and less often than `times`, and by how much."""
    if isinstance(trained, np.ndarray):
        trained = dict(enumerate(np.nan_to_num(trained).tolist()))  # NaN: it was not
    due = Counter(dict.fromkeys(range(number), times))
    done = Counter(dict(trained))
    return done - due, due - done


def assert_each(trained: Mapping[int, float] | np.ndarray, number: int, times: int = 1) -> None:
    """Raise NotOnce unless each of 0 ... number - 1, and nothing else, was trained `times` times.

    Args:
        trained: how often each was: of positions, each of which is due once, or of examples, each
            of which is due once an epoch.
    """
    often, seldom = differences(trained, number, times)
    if often or seldom:
        raise NotOnce(f"not each of {number} was trained {times} times: {dict(often)} too often, "
                      f"{dict(seldom)} too seldom")
