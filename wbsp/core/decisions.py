"""Decisions of a synchronization model: checked against its contract, and turned into records.

The records are complete, in order, and without tensors. A record changes the global model or
instructs a worker; carrying it out is a second step that cannot fail. So everything that follows
the records (the store, a log) arrives at equal versions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import NamedTuple

from wbsp.core.messages import Ack, Directed, Granted, Outgoing
from wbsp.core.stats import AnsweredWork, Member
from wbsp.limits import one_line
from wbsp.sync.base import (
    UNFIT,
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
    """Record: weight * update of push `seq` of `worker` is added to the pending sum.

    `steps` are those of the update by an optimizer with momentum; 0: the worker's is plain SGD.
    """

    worker: int
    seq: int
    weight: float
    steps: int


class Resent(NamedTuple):
    """Record: a resent sum of weight * update is added to the pending sum.

    It is `work` of `worker`, which an earlier server had accepted and lost. `weight` is 0 if other
    workers have done a part of that work since. For the outer step it counts as plain SGD.
    """

    worker: int
    work: AnsweredWork
    weight: float = 1.0


class Rejected(NamedTuple):
    """Record: the update of push `seq` of `worker` is dropped."""

    worker: int
    seq: int
    reason: str


class Committed(NamedTuple):
    """Record: the pending sum makes version `version`.

    That is the next number, or a higher one if an earlier server gave the numbers between to
    workers.
    """

    version: int


class Adopted(NamedTuple):
    """Record: version `above` of the server above, with this site's uncut progress, makes
    `version`."""

    version: int
    above: int


Record = Accepted | Resent | Rejected | Committed | Adopted | Outgoing


class Failed(SyncModel):
    """The replacement of a model that has failed, until the workers have finished.

    It rejects all pushes, and lets no worker wait.
    """

    name = "failed"

    def __init__(self, model: SyncModel, here: Iterable[int]):
        """Replace `model`, with the active workers `here`."""
        super().__init__()
        self.rule = model.rule
        self.active = set(here)

    def push(self, push: Push, now: float) -> list[Action]:
        return [Reject(push, FAILED), Grant(push.worker)]

    def query(self, worker: int, steps: int, seconds: float, now: float) -> list[Action]:
        return [Direct(worker, cut=False)]


def joined(model: SyncModel, worker: int, answer: Iterable[Action]) -> Iterable[Action]:
    """Return the model's answer to a join.

    Raises:
        ContractError: the model does not have the worker in `active` after it.
    """
    answer = list(answer)
    if worker not in model.active:
        raise ContractError(f"{model.name} does not have worker {worker} in `active` after its "
                            "join; call super().join or super().rejoin in the model")
    return answer


def left(model: SyncModel, worker: int, answer: Iterable[Action]) -> Iterable[Action]:
    """Return the model's answer to a leave.

    Raises:
        ContractError: the model still has the worker in `active` after it.
    """
    answer = list(answer)
    if worker in model.active:
        raise ContractError(f"{model.name} still has worker {worker} in `active` after it has "
                            "left; call super().leave in the model")
    return answer


def check_alarm(model: SyncModel) -> None:
    """Raise ContractError if the model's alarm is neither a finite time nor None."""
    if model.alarm is not None and not isinstance(model.alarm, Real):
        raise ContractError(f"{model.name} has set `alarm` to {model.alarm!r}, which is neither "
                            "seconds nor None")


def decide(model: SyncModel, actions: Iterable[Action], version: int,
           members: Mapping[int, Member], push: Push | None = None,
           objection: Callable[[float], str | None] = lambda weight: None) -> list[Record]:
    """Return the records of a model's answer to one event.

    Args:
        model: the model.
        actions: its answer.
        version: the newest one before the event.
        members: the workers that ever joined. Naming one that has left is no error, because a
            faulty peer that pushes without a grant may cause it.
        push: the push, if the event was one.
        objection: returns why the update cannot be accepted with a weight, or None.

    Raises:
        ContractError: `SyncModel` does not permit the answer.
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
                if action != Direct(action.worker):  # else it changes nothing
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
            records.append(_judged(model, action, members[push.worker].sgd, objection))
        else:
            raise ContractError(f"{model.name} answered with {action!r}, which is not an action")
    if not answered:
        raise ContractError(f"{model.name} neither accepted nor rejected {push!r}")
    return records


def decide_cut(model: SyncModel, actions: Iterable[Action], version: int,
               members: Mapping[int, Member], worker: int) -> tuple[bool, list[Record]]:
    """Return whether the `worker` that asked must cut, and the other records of the answer.

    Raises:
        ContractError: `SyncModel` does not permit the answer.
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
    """Raise ContractError for an instruction that no worker can follow."""
    flags, numbers = (direct.hold, direct.cut), ((direct.batch, 1), (direct.start, 0))
    if not (all(flag is None or isinstance(flag, bool) for flag in flags)
            and isinstance(direct.why, str | None)
            and all(number is None or (type(number) is int and least <= number <= _MOST)
                    for number, least in numbers)):
        raise ContractError(f"{model.name} answered with {direct!r}; hold and cut are True, False "
                            "or None, batch (of 1 or more) and start are integers or None, and why "
                            "is text or None")


def _judged(model: SyncModel, action: Accept | Reject, sgd: bool,
            objection: Callable[[float], str | None]) -> Accepted | Rejected:
    push = action.push
    if isinstance(action, Reject):
        if not isinstance(action.reason, str):
            raise ContractError(f"{model.name} rejected {push!r} with reason {action.reason!r}, "
                                "which is not text")
        unfit = objection(0.0)  # its worker must know, whatever else there is against it
        return Rejected(push.worker, push.seq,
                        unfit if unfit in UNFIT else one_line(action.reason))
    weight = action.weight
    if (type(weight) is not float and not isinstance(weight, Real)) or not math.isfinite(weight):
        raise ContractError(f"{model.name} accepted {push!r} with weight {weight!r}")
    if reason := objection(weight):
        return Rejected(push.worker, push.seq, reason)
    return Accepted(push.worker, push.seq, weight, 0 if sgd else push.steps)


def outgoing_of(records: Iterable[Record]) -> list[Outgoing]:
    """Return the messages to the workers after an event other than a push."""
    return [record for record in records if isinstance(record, Outgoing)]


def acknowledge(push: Push, records: Iterable[Record], mark: int,
                steps: int) -> tuple[Ack, list[Outgoing]]:
    """Return the answer to `push`, and the messages to other workers.

    A grant to the pusher, and a direction to hold, are part of the answer.

    Args:
        push: the push.
        records: the decisions on it.
        mark: the checkpoint number under which they were made.
        steps: of all workers, those of the push included.
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
