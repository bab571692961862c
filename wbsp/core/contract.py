"""What a synchronization model's own state must be after an event, and who answers for one that has
failed."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real

from wbsp.sync.base import Action, ContractError, Direct, Grant, Push, Reject, SyncModel

FAILED = "the synchronization model has failed"


class Failed(SyncModel):
    """In the place of a model that has failed, until the workers have finished: what they still
    push is rejected, and no one waits."""

    name = "failed"

    def __init__(self, model: SyncModel, here: Iterable[int]):
        """`here`: the active workers."""
        super().__init__()
        self.rule, self.active = model.rule, set(here)

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
