"""Messages to workers: the effects of the engine's decisions, before they are sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wbsp.core.decisions import Accepted, Directed, Granted, Record, Rejected
from wbsp.core.store import Snapshot
from wbsp.sync.base import Direct, Push


class Ack(NamedTuple):
    """Answer to one push. `granted` is the version the worker may fetch now, if any."""

    worker: int
    seq: int
    accepted: bool
    reason: str | None = None  # of a rejection
    granted: int | None = None
    hold: bool = False
    weight: float = 0.0  # of an accepted update
    mark: int = 0  # see `Ledger`
    steps: int = 0  # of all workers in the run so far, those of this push included; 0: not known


class Reattached(NamedTuple):
    """A known worker has reattached and may go on; its model starts with the next effects.

    safe: pushes below this number are durable
    mark: of the sum of pushes that it has sent again
    ack:  the answer to its newest push, if there is one
    """

    worker: int
    safe: int
    mark: int
    ack: Ack | None


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


Effect = Ack | Reattached | Granted | Directed | CutDecision | Model | Stop | Final


def tell(records: Iterable[Record], pusher: int | None = None) -> list[Effect]:
    """What the workers are told of `records`, but for what the Ack to the `pusher` says."""
    effects: list[Effect] = []
    for record in records:
        if isinstance(record, Granted) and record.worker != pusher:
            effects.append(record)
        elif isinstance(record, Directed):
            direct = record.direct
            if record.worker == pusher:
                direct = direct._replace(hold=None)
            if direct != Direct(record.worker):
                effects.append(Directed(record.worker, direct))
    return effects


def resume(worker: int, safe: int, mark: int, ack: Ack | None) -> Reattached:
    """The answer to a worker that attached again; what its newest `ack` granted is void."""
    return Reattached(worker, safe, mark, ack and ack._replace(granted=None, hold=False))


def acknowledge(push: Push, records: Iterable[Record], mark: int, steps: int) -> Ack:
    """The answer to `push`, which was decided under `mark`, and after which all workers have done
    `steps`; a grant to its worker and an order to hold travel in it."""
    accepted, reason, granted, hold, weight = False, None, None, False, 0.0
    for record in records:
        if isinstance(record, Accepted):
            accepted, weight = True, record.weight
        elif isinstance(record, Rejected):
            reason = record.reason
        elif isinstance(record, Granted) and record.worker == push.worker:
            granted = record.version
        elif isinstance(record, Directed) and record.worker == push.worker:
            hold = hold or bool(record.direct.hold)
    return Ack(push.worker, push.seq, accepted, reason, granted, hold, weight, mark, steps)
