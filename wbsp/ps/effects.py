"""What a worker is told: the effects of the engine's decisions, before anybody sends them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wbsp.ps.decision import Accepted, Directed, Granted, Record, Rejected
from wbsp.ps.store import Snapshot
from wbsp.sync.base import Direct, Push


class Ack(NamedTuple):
    """Answer to one push. `granted` is the version the worker may fetch now, if any."""

    worker: int
    seq: int
    accepted: bool
    reason: str | None = None  # of a rejection
    granted: int | None = None
    hold: bool = False


class CutDecision(NamedTuple):
    """Answer to a worker's query `number`: hand over the progress now, or go on."""

    worker: int
    number: int
    cut: bool


class Model(NamedTuple):
    """Answer to a worker's fetch `number`: a version, which was the newest when it was decided."""

    worker: int
    number: int
    snapshot: Snapshot


class Stop(NamedTuple):
    """Training is over: finish the step, push what is left, leave."""

    worker: int
    reason: str


class Final(NamedTuple):
    """The last version is there; a worker that has left in good order may fetch it."""

    worker: int
    version: int


Effect = Ack | Granted | Directed | CutDecision | Model | Stop | Final


def effects_of(records: Iterable[Record], push: Push | None = None) -> tuple[list[Effect],
                                                                          Ack | None]:
    """What the workers are told of `records`; the Ack is for the event `push`, if it was one.

    A grant to the pusher and an order to hold travel in the Ack.
    """
    effects: list[Effect] = []
    accepted, reason, granted, hold = False, None, None, False
    pusher = None if push is None else push.worker
    for record in records:
        kind = type(record)
        if kind is Accepted:
            accepted = True
        elif kind is Rejected:
            reason = record.reason
        elif kind is Granted:
            if record.worker == pusher:
                granted = record.version
            else:
                effects.append(record)
        elif kind is Directed:
            worker, direct = record
            if worker == pusher and direct.hold:
                hold, direct = True, direct._replace(hold=None)
            if direct != Direct(worker):
                effects.append(Directed(worker, direct))
    if push is None:
        return effects, None
    return effects, Ack(push.worker, push.seq, accepted, reason, granted, hold)
