"""A synchronization model's decisions: held against its contract, and made records, which are
complete, in order, and without tensors.

A record changes the global model, or instructs a worker; carrying it out is a second step
that cannot refuse. So all that follow the records (the store, a log) come to the same versions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable
from numbers import Real
from typing import NamedTuple

from wbsp.core.messages import Ack, Directed, Granted, Outgoing
from wbsp.core.stats import AnsweredWork
from wbsp.limits import one_line
from wbsp.sync.base import (
    Accept,
    Action,
    Commit,
    ContractError,
    Direct,
    Grant,
    Push,
    Reject,
    SyncModel,
)

_MOST = 1 << 53  # examples
FAILED = "the synchronization model has failed"


class Accepted(NamedTuple):
    """weight * update goes into the pending sum; push `seq` of `worker` brought the update."""

    worker: int
    seq: int
    weight: float


class Resent(NamedTuple):
    """A sum of weight * update goes into the pending sum: `work` of `worker`, which an earlier
    server had decided on and lost. `weight`: 0 where others have done some of its work."""

    worker: int
    work: AnsweredWork
    weight: float = 1.0


class Rejected(NamedTuple):
    """The update of push `seq` of `worker` is dropped."""

    worker: int
    seq: int
    reason: str


class Committed(NamedTuple):
    """The pending sum makes version `version`: the next one, or a higher one, where workers know
    the numbers between from an earlier server."""

    version: int


Record = Accepted | Resent | Rejected | Committed | Outgoing


class Failed(SyncModel):
    """In the place of a model that has failed, until the workers have finished: what they still
    push is rejected, and no one waits."""

    name = "failed"

    def __init__(self, model: SyncModel, here: Iterable[int]):
        """`here`: the active workers."""
        super().__init__()
        self.rule = model.rule
        self.active = set(here)

    def push(self, push: Push, now: float) -> list[Action]:
        return [Reject(push, FAILED), Grant(push.worker)]

    def query(self, worker: int, steps: int, seconds: float, now: float) -> list[Action]:
        return [Direct(worker, cut=False)]


def joined(model: SyncModel, worker: int, answer: Iterable[Action]) -> Iterable[Action]:
    """The answer to a join. Raises ContractError where the model does not know the worker then."""
    answer = list(answer)
    if worker not in model.active:
        raise ContractError(f"{model.name} does not have worker {worker} in `active` after its "
                            "join; a method join or rejoin of one's own calls the base's")
    return answer


def left(model: SyncModel, worker: int, answer: Iterable[Action]) -> Iterable[Action]:
    """The answer to a leave. Raises ContractError where the model still has the worker then."""
    answer = list(answer)
    if worker in model.active:
        raise ContractError(f"{model.name} still has worker {worker} in `active` after it has "
                            "left; a method leave of one's own calls the base's")
    return answer


def check_alarm(model: SyncModel) -> None:
    """Raises ContractError for an alarm that is no time."""
    if model.alarm is not None and not isinstance(model.alarm, Real):
        raise ContractError(f"{model.name} has set `alarm` to {model.alarm!r}, which is neither "
                            "seconds nor None")


def decide(model: SyncModel, actions: Iterable[Action], version: int, members: Container[int],
           push: Push | None = None,
           objection: Callable[[float], str | None] = lambda weight: None) -> list[Record]:
    """The records of a model's answer to one event.

    version: the newest one before the event
    members: the workers that ever joined. To speak of one that has left is no error: a peer that
             pushes without having been granted may bring a model to that.
    push:    the push that was the event, if it was one
    objection: why its update cannot be accepted with that weight, whatever the model makes of it;
             None: it can be

    Raises ContractError where the answer is not one that `SyncModel` allows.
    """
    records: list[Record] = []
    answered = push is None
    for action in actions:
        if isinstance(action, Grant | Direct):
            if action.worker not in members:
                raise ContractError(f"{model.name} answered with {action!r}, but worker "
                                    f"{action.worker} has not joined")
            if isinstance(action, Grant):
                records.append(Outgoing(action.worker, Granted(version)))
            else:
                _check(model, action)
                if action != Direct(action.worker):  # else: it says nothing
                    records.append(Outgoing(action.worker, Directed(action)))
        elif isinstance(action, Commit):
            if not answered:
                raise ContractError(f"{model.name} committed before it accepted or rejected "
                                    f"{push!r}")
            version += 1
            records.append(Committed(version))
        elif isinstance(action, Accept | Reject):
            if push is None or action.push != push:
                raise ContractError(f"{model.name} answered with {action!r}, but the event was "
                                    f"{'no push' if push is None else repr(push)}")
            if answered:
                raise ContractError(f"{model.name} answered a second time with {action!r}")
            answered = True
            records.append(_judged(model, action, objection))
        else:
            raise ContractError(f"{model.name} answered with {action!r}, which is no action")
    if not answered:
        raise ContractError(f"{model.name} neither accepted nor rejected {push!r}")
    return records


def decide_cut(model: SyncModel, actions: Iterable[Action], version: int, members: Container[int],
               worker: int) -> tuple[bool, list[Record]]:
    """Whether the `worker` that asked is to cut, and the other records of the model's answer.

    Raises ContractError where the answer is not one that `SyncModel` allows.
    """
    cut: bool | None = None
    others: list[Action] = []
    for action in actions:
        if not isinstance(action, Direct) or action.worker != worker:
            others.append(action)
        elif cut is not None or action.cut is None:
            raise ContractError(f"{model.name} answered the query of worker {worker} with "
                                f"{action!r}; exactly one Direct with cut=True or False is due")
        else:
            cut = action.cut
    if cut is None:
        raise ContractError(f"{model.name} did not answer the query of worker {worker}")
    return cut, decide(model, others, version, members)


def _check(model: SyncModel, direct: Direct) -> None:
    """Raises ContractError for an instruction that no worker could follow."""
    flags, numbers = (direct.hold, direct.cut), ((direct.batch, 1), (direct.start, 0))
    if not (all(flag is None or isinstance(flag, bool) for flag in flags)
            and all(number is None or (type(number) is int and least <= number <= _MOST)
                    for number, least in numbers)):
        raise ContractError(f"{model.name} answered with {direct!r}; hold and cut are True, False "
                            "or None, and batch (of 1 or more) and start are integers or None")


def _judged(model: SyncModel, action: Accept | Reject,
            objection: Callable[[float], str | None]) -> Accepted | Rejected:
    push = action.push
    if isinstance(action, Reject):
        if not isinstance(action.reason, str):
            raise ContractError(f"{model.name} rejected {push!r} with reason {action.reason!r}, "
                                "which is no text")
        return Rejected(push.worker, push.seq, one_line(action.reason))
    weight = action.weight
    if type(weight) is not float and not isinstance(weight, Real) or not math.isfinite(weight):
        raise ContractError(f"{model.name} accepted {push!r} with weight {weight!r}")
    if reason := objection(weight):
        return Rejected(push.worker, push.seq, reason)
    return Accepted(push.worker, push.seq, weight)


def outgoing_of(records: Iterable[Record]) -> list[Outgoing]:
    """What the workers are told of an event that is no push."""
    return [record for record in records if isinstance(record, Outgoing)]


def acknowledge(push: Push, records: Iterable[Record], mark: int,
                steps: int) -> tuple[Ack, list[Outgoing]]:
    """The answer to `push`, which was decided under `mark`, and after which all workers have done
    `steps`; and what else the workers are told.

    A grant to the pusher and an order to hold travel in the answer.
    """
    accepted = False
    reason = None
    weight = 0.0
    granted = None
    hold = False
    others: list[Outgoing] = []
    for record in records:
        if isinstance(record, Accepted):
            accepted = True
            weight = record.weight
        elif isinstance(record, Rejected):
            reason = record.reason
        elif isinstance(record, Outgoing):
            message = record.message
            if record.worker != push.worker:
                others.append(record)
            elif isinstance(message, Granted):
                granted = message.version
            elif isinstance(message, Directed):
                hold = hold or bool(message.direct.hold)
                rest = message.direct._replace(hold=None)
                if rest != Direct(push.worker):
                    others.append(Outgoing(push.worker, Directed(rest)))
    return Ack(push.seq, accepted, reason, granted, hold, weight, mark, steps), others
