"""What the processes of all entries have in common, so that only the tool differs: the network, the
text, AdamW, the schedule, the sleep of a slow machine, and the log of steps.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from beside.plan import Plan
from data import stdlib
from models.gpt import BYTES, shape
from models.gpt_torch import GPT

WARM_UP, LAST, DECAY, CLIP = 0.05, 0.05, 0.1, 1.0
PATIENCE = 120.0  # seconds for the others to start


class Training:
    """This process's part of a run: `python -m beside.entries.NAME FOLDER MACHINE`.

    Attributes:
        plan, folder, index: the run, its files, and this machine.
        model: the network at W_0.
    """

    def __init__(self) -> None:
        self.folder, self.index = Path(sys.argv[1]), int(sys.argv[2])
        self.plan = Plan.read(self.folder)
        torch.set_num_threads(1)
        torch.manual_seed(self.plan.seed)
        form = shape(self.plan.model)
        assert form is not None
        self.model = GPT(form, self.plan.seed)
        self._text = stdlib.load(None, "train", stdlib.Look(form.context))
        self._order = np.random.default_rng(1000 + self.plan.seed).permutation(len(self._text[0]))
        self._log = os.open(self.folder / f"steps-{self.index}.txt",
                            os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._spent: dict[int, float] = {}  # examples of a step -> seconds that it computes
        self._own = self.steps = self.examples = 0

    @property
    def total(self) -> int:
        """Examples of the run."""
        return self.plan.total

    def optimizer(self, parameters: Iterable[Any] | None = None) -> torch.optim.Optimizer:
        """Return AdamW on the model's parameters."""
        given = self.plan.given
        return torch.optim.AdamW(self.model.parameters() if parameters is None else parameters,
                                 given.lr, betas=(given.beta1, 0.95), weight_decay=DECAY)

    def factor(self, done: float) -> float:
        """Return the schedule's factor of the rate when `done` examples of the run are trained."""
        part = min(1.0, done / self.total)
        if part < WARM_UP:
            return max(part / WARM_UP, 1e-3)
        along = (part - WARM_UP) / (1 - WARM_UP)
        return LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * along))

    def rate(self, optimizer: torch.optim.Optimizer, done: float) -> None:
        """Set the optimizer's rate."""
        for group in optimizer.param_groups:
            group["lr"] = self.plan.given.lr * self.factor(done)

    def own(self, count: int) -> np.ndarray:
        """Return this machine's next examples: as a DistributedSampler deals them."""
        first, self._own = self._own, self._own + count
        return np.arange(first, self._own) * len(self.plan.slow) + self.index

    def batch(self, places: Sequence[int] | np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return bytes and the bytes after them; `places`: in the order of the seed."""
        rows = self._order[np.asarray(places) % len(self._order)]
        seen, wanted = (torch.from_numpy(part[rows].astype(np.int64)) for part in self._text)
        return seen, wanted

    def gradient(self, net: torch.nn.Module, places: Sequence[int] | np.ndarray,
                 weight: float = 1.0, add: bool = False) -> float:
        """Compute the gradient, and return the loss.

        A slow machine sleeps before the gradient is there, so that it comes late for a tool that
        sends it within `backward`, too.
        """
        if not add:
            net.zero_grad()
        seen, wanted = self.batch(places)
        begin = time.thread_time()  # without what other threads and processes compute meanwhile
        loss = functional.cross_entropy(net(seen).view(-1, BYTES), wanted.reshape(-1))
        forward, count = time.thread_time() - begin, len(places)
        spent = self._spent.get(count, 3 * forward)
        time.sleep((self._slow() - 1) * spent)
        begin = time.thread_time()
        (loss * weight).backward()
        took = forward + time.thread_time() - begin
        self._spent[count] = 0.9 * spent + 0.1 * took if count in self._spent else took
        return loss.item()

    def _slow(self) -> float:
        """Return how many times longer a step lasts, with what has happened to this machine."""
        slow = self.plan.slow[self.index] if self.plan.sleeps else 1.0
        happened = self.folder / f"slower-{self.index}"
        return slow * float(happened.read_text()) if happened.exists() else slow

    def clip(self) -> None:
        """Clip the gradient's norm."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)

    def begin(self) -> None:
        """Wait until all machines that the run begins with are ready. The run's time begins."""
        (self.folder / f"ready-{self.index}").touch()
        wanted = [self.folder / f"ready-{i}" for i in range(self.plan.begin)]
        end = time.monotonic() + PATIENCE
        while not all(path.exists() for path in wanted):
            if time.monotonic() > end:
                raise TimeoutError("the other machines have not started")
            time.sleep(0.01)
        self._write(f"begin {time.monotonic():.4f}")

    def made(self, places: Sequence[int] | np.ndarray, loss: float) -> None:
        """Log a step of this machine, whose examples count for the model from now on."""
        self.steps += 1
        self.examples += len(places)
        self._write(f"{time.monotonic():.4f} {loss:.4f} {' '.join(map(str, places))}")

    def finish(self, model: torch.nn.Module | None = None) -> None:
        """Note that the last update is made, and give the final weights."""
        end = time.monotonic()
        final = self.folder / f"final-{self.index}.pt"
        torch.save((model or self.model).state_dict(), f"{final}.part")
        os.rename(f"{final}.part", final)
        (self.folder / f"end-{self.index}.json").write_text(json.dumps(
            {"end": end, "steps": self.steps, "examples": self.examples}) + "\n")

    def _write(self, line: str) -> None:
        os.write(self._log, f"{line}\n".encode())


class Outer:
    """An outer step on what `every` steps of an optimizer change.

    `qhm`: quasi-hyperbolic momentum (Ma and Yarats, ICLR 2019), rate 8, nu 0.875, momentum 0.95.
    `nesterov`: 0.7 and 0.9, on a lone machine SNOO (arXiv 2510.15830).
    """

    RATE, NU, MOMENTUM = 8.0, 0.875, 0.95

    def __init__(self, inner: Any, kind: str, every: int):
        if kind not in ("qhm", "nesterov"):
            raise ValueError(f"outer={kind}: there are qhm and nesterov")
        self._inner, self._kind, self._every, self._steps = inner, kind, every, 0
        self._values = [value for group in inner.param_groups for value in group["params"]]
        self._base = [torch.nn.Parameter(value.detach().clone()) for value in self._values]
        self._memory = [torch.zeros_like(value) for value in self._base]
        self._outer = torch.optim.SGD(self._base, 0.7, momentum=0.9, nesterov=True)

    @torch.no_grad()
    def step(self) -> None:
        """Make a step of the optimizer, and the outer one if it is due."""
        self._inner.step()
        self._steps += 1
        if self._steps % self._every:
            return
        for value, base, memory in zip(self._values, self._base, self._memory, strict=True):
            moved = value - base
            if self._kind == "qhm":
                memory.lerp_(moved, 1 - self.MOMENTUM)
                base.add_(moved.lerp_(memory, self.NU), alpha=self.RATE)
            else:
                base.grad = -moved
        if self._kind == "nesterov":
            self._outer.step()
        for value, base in zip(self._values, self._base, strict=True):
            value.copy_(base)


def stepping(training: Training, optimizer: Any) -> Any:
    """Return what makes the steps: the optimizer, or the outer step of the options around it."""
    given = training.plan.options
    if "outer" not in given:
        return optimizer
    return Outer(optimizer, given["outer"], training.plan.whole("every", 1))
