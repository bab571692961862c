"""AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) as language models are trained with it.

Matrices decay, vectors do not; the gradient is clipped to a norm before. The rate rises and falls
with the part of the run's examples that all workers have trained, so that it ends with the run,
however unequal the workers are. Each worker has its own moments, which are never sent.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from models.gpt import shape

NAME = "adamw"
OTHERS = "sgd", "nesterov", "adam"  # which have no options
RATE = 0.003  # of a small network
EPSILON = 1e-8
LEAST = 0.05  # part of the rate that is left at the end of the run
_BELOW = {"beta1": 1.0, "beta2": 1.0, "warmup": 1.0}  # each option is at least 0


class AdamW(NamedTuple):
    """The options of the optimizer.

    Attributes:
        decay: of a matrix in a step, times the rate.
        clip: the most norm of the whole gradient; 0: it is not clipped.
        beta1: of the mean of the gradients.
        beta2: of the mean of their squares.
        warmup: part of the run's examples in which the rate rises to the given one. Then it falls
            by half a cosine.
    """

    decay: float = 0.1
    clip: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.95
    warmup: float = 0.05

    def factor(self, done: float) -> float:
        """Return the part of the rate at a part of the run's examples, 0..1."""
        if done < self.warmup:
            return done / self.warmup + 1e-3  # so that the first step is one
        left = (done - self.warmup) / (1 - self.warmup)
        return LEAST + (1 - LEAST) / 2 * (1 + math.cos(math.pi * min(1.0, left)))


def usual(model: str) -> str:
    """Return the optimizer of a network for which none is named."""
    return OTHERS[0] if shape(model) is None else NAME


def checked(text: str | None) -> AdamW | None:
    """Return what `adamw` does, for a user's text.

    Raises:
        ValueError: no optimizer has this name, or an option is bad; one line.
    """
    if text is not None and text not in OTHERS and text.partition(":")[0] != NAME:
        raise ValueError(f"--optimizer={text}: choose {', '.join(OTHERS)}, or adamw with its "
                         "options, such as adamw:decay=0.1")
    return adamw(text)


def adamw(text: str | None) -> AdamW | None:
    """Return the options in an optimizer's text, such as `adamw:beta1=0:warmup=0.1`; None: it is
    another optimizer.

    Raises:
        ValueError: an option is bad; one line.
    """
    name, *options = (text or "").split(":")
    if name != NAME:
        return None
    given: dict[str, float] = {}
    for option in options:
        key, _, value = option.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if key not in AdamW._fields or not 0 <= number < _BELOW.get(key, math.inf):
            raise ValueError(f"--optimizer={text}: {option!r} is no option of adamw; give decay or "
                             "clip of 0 or more, or beta1, beta2 or warmup of 0 to 1, such as "
                             "adamw:beta1=0:decay=0.1")
        given[key] = number
    return AdamW(**given)
