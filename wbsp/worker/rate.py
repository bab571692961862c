"""The learning rate of a step on fewer examples than the script's, set for that step alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from wbsp.sync.batch import power_of
from wbsp.worker.runtime import WorkerRuntime

UNKNOWN = ("it trains the script's own batch: smaller ones are for Adam, AdamW and RMSprop with a "
           "plain rate, and it has {}")
OWN = ("it trains the script's own batch. Under {} a smaller one may gain with Adam, AdamW or "
       "RMSprop: give wbsp.Worker optimizer=\"adam\", and multiply the loop's rate by w.rate_scale "
       "in each step")
GROUP = "it trains the script's own batch, because it is a group of processes"


class StepRate:
    """The factor of a worker's rate, by the power of the batch with which its optimizer's goes.

    Attributes:
        power: None: not known, so that the worker keeps the script's batch.
        found: `goes_by` was called.
    """

    def __init__(self, runtime: WorkerRuntime, say: Callable[[str], None]):
        self._runtime, self._say = runtime, say
        self.power: float | None = None
        self.found = False
        self._part = 1.0

    def goes_by(self, power: float | None) -> None:
        """Set the power, before a step."""
        self.found = True
        if power != self.power:
            self.power = power
            self._runtime.follows(power is not None)

    @property
    def factor(self) -> float:
        """Of the rate of the step that begins now."""
        part = self._runtime.part
        factor = part ** (self.power or 0.0)
        if part != self._part and (line := self._runtime.batch_line):
            self._part = part
            self._say(f"{line}. Its rate is {factor:.3g} times the script's "
                      "(--sync_option=batch=keep leaves both)")
        return factor


class TorchRate:
    """Sets the rate of each step of PyTorch's optimizers in this thread, by their global hooks."""

    def __init__(self, rate: StepRate, say: Callable[[str], None]):
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self._rate, self._say, self._thread = rate, say, threading.get_ident()
        self._own: dict[int, list[tuple[dict[str, Any], Any]]] = {}  # optimizer -> its own rates
        self._unknown = False
        self._hooks = [register_optimizer_step_pre_hook(self._begins),
                       register_optimizer_step_post_hook(self._ended)]

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._ended(optimizer)  # a step that has raised
        power = power_of(type(optimizer))
        if power is None and not self._unknown:
            self._unknown = True
            self._say(UNKNOWN.format(type(optimizer).__name__))
        self._rate.goes_by(None if self._unknown else power)
        if (factor := self._rate.factor) != 1.0:
            own = [(group, group["lr"]) for group in optimizer.param_groups]
            self._own[id(optimizer)] = own
            for group, rate in own:
                group["lr"] = rate * factor

    def _ended(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> None:
        for group, rate in self._own.pop(id(optimizer), ()):
            group["lr"] = rate
