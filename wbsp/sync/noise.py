"""The noise scale of the gradients, and the share of the work that counts, from norms.

Source: McCandlish et al. 2018, arXiv 1812.06162, appendix A.1 [paper], who compare two sizes of
batches; here it is single pushes and the sums of versions. docs/explanation/noise-scale.md derives
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

_VERSIONS = 100  # in the moving averages, about
_LEAST = 10  # measured versions before the scale is known
_SHORT = 2.0  # steps by which a measured version moves the model, at most
_SURE = 2.0  # standard errors by which the gradient's part must be above 0


class Pushed(NamedTuple):
    """An accepted push: its weight, content, and squared norm."""

    weight: float
    steps: int
    samples: int
    norm2: float


class Sums(NamedTuple):
    """Sums over the pushes of a version, of weights w, steps n and examples m.

    moved: of w n
    alone: of (w n)^2
    noise: of (w n)^2 / m
    samples: of m
    steps: of n
    """

    moved: float
    alone: float
    noise: float
    samples: int
    steps: int

    @property
    def width(self) -> float:
        """Batches that a step of the model averages in this version.

        The model moves by (sum of w n) steps, with the noise (sum of (w n)^2 / m) tr(S): like so
        many steps of a batch that is the quotient of both. That is N batches for equal workers
        whose updates are averaged, whatever their local steps, together or one after the other.
        """
        return self.moved / self.noise * self.steps / self.samples if self.noise else 1.0


class NoiseScale:
    """Meter of B = tr(S) / |G|^2: the examples at which noise and gradient are equally long.

    G is the gradient, S the covariance of one example's gradient. A push u of n steps with m
    examples, and a version's sum U of pushes with weights w, have at learning rate 1

        E |u|^2 = n^2 |G|^2 + n^2 / m tr(S)
        E |U|^2 = (sum of w n)^2 |G|^2 + (sum of (w n)^2 / m) tr(S)

    So each version of two or more pushes gives |G|^2 and tr(S). They are divided by the version's
    mean |u|^2 / n^2, so that the learning rate does not matter, and averaged over versions.

    It holds for plain SGD, for workers that draw from the same data, and as far as G is one
    gradient for all steps of a version. Local steps undo a part of each other, so that the scale of
    eight of them came out 20 times too large; the same holds for workers that continue from their
    own progress and not from the newest version. So versions of more than 2 steps, or with a push
    from an older version, are not measured. Neither are versions with a push of steps that trained
    no example, because such a push has no gradient.

    Attributes:
        efficiency: part of the work that counted since the scale is known, 0..1; or None.
        batch: examples of a step, a moving average.
    """

    def __init__(self) -> None:
        self.efficiency: float | None = None
        self.batch = 0.0
        self._width = 0.0  # batches that one step of the model averages, a moving average
        self._pushes: list[Pushed] = []  # of the next version
        self._odd = False  # one of these is from an older version, or of no example
        self._made = deque[tuple[int, list[Pushed]]]()  # versions whose norm is not known yet
        self._counted = self._measured = 0  # versions in the averages of width, of the scale
        self._gradient = self._square = self._noise = 0.0  # moving averages
        self._useful = self._examples = 0.0  # that `efficiency` is the ratio of

    def push(self, weight: float, steps: int, samples: int, norm2: float, lag: int) -> None:
        """Count an accepted push, which was computed from a version `lag` versions old."""
        self._pushes.append(Pushed(weight, steps, samples, norm2))
        self._odd = self._odd or lag > 0 or samples <= 0

    def committed(self, version: int, merged: int) -> None:
        """End a version of `merged` updates; one with odd pushes, or others, does not count."""
        if self._pushes and len(self._pushes) == merged and not self._odd:
            self._made.append((version, self._pushes))
        self._pushes, self._odd = [], False

    def measured(self, version: int, norm2: float) -> None:
        """Take the squared norm of a version's sum; versions ascend."""
        while self._made and self._made[0][0] <= version:
            number, pushes = self._made.popleft()
            if number == version:
                self._measure(pushes, norm2)

    @property
    def scale(self) -> float | None:
        """B in examples; None: not known."""
        if self._measured < _LEAST:
            return None
        spread = max(0.0, self._square - self._gradient**2)
        error = (spread / min(self._measured, 2 * _VERSIONS)) ** 0.5
        if self._gradient <= _SURE * error:
            return None
        return max(0.0, self._noise / self._gradient)

    def gain(self, batch: float) -> float:
        """Return how many times as much an example would count in a worker's batch of `batch`."""
        scale = self.scale or 0.0
        return (scale + self._width * self.batch) / (scale + self._width * batch)

    def _measure(self, pushes: list[Pushed], norm2: float) -> None:
        moved, alone, noise, samples, steps = sums = sums_of(pushes)
        length = sum([one.weight**2 * one.norm2 for one in pushes])
        if not (noise and length):
            return
        if moved <= _SHORT and moved**2 - alone > 1e-6 * alone:
            gradient = (norm2 - length) / (moved**2 - alone) * alone / length
            self._measured += 1
            rate = 1 / min(self._measured, _VERSIONS)
            self._gradient += rate * (gradient - self._gradient)
            self._square += rate * (gradient**2 - self._square)
            self._noise += rate * ((1 - gradient) * alone / noise - self._noise)
        batch = samples / steps
        width = sums.width
        self._counted += 1
        rate = 1 / min(self._counted, _VERSIONS)
        self.batch += rate * (batch - self.batch)
        self._width += rate * (width - self._width)
        if (scale := self.scale) is not None:
            # An example in a step of width * batch examples moves the model so much less than in a
            # step of one worker's: goodput's second factor (Pollux, Qiao et al. 2021).
            self._useful += samples * (scale + batch) / (scale + width * batch)
            self._examples += samples
            self.efficiency = min(1.0, self._useful / self._examples)


def sums_of(pushes: Sequence[Pushed]) -> Sums:
    """Return the sums over the pushes of a version."""
    moved = alone = noise = 0.0
    samples = steps = 0
    for weight, n, m, _ in pushes:  # in one loop: a server does this for each version
        moved += weight * n
        alone += (weight * n)**2
        noise += (weight * n)**2 / m if m else 0.0  # nothing was trained
        samples += m
        steps += n
    return Sums(moved, alone, noise, samples, steps)
