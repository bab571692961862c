"""What an agent remembers: the metadata of uncut progress, its cuts, and its requests."""

from __future__ import annotations

from dataclasses import dataclass

from wbsp.sync.base import Push


@dataclass(slots=True)
class Progress:
    """Metadata of the uncut progress."""

    base: int = 0  # version that it started from
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0  # of compute
    loss: float | None = 0.0  # sum over the samples; None: not known

    def add(self, steps: int, samples: int, seconds: float, loss: float | None) -> None:
        """Count a step with the mean loss `loss`."""
        self.steps += steps
        self.samples += samples
        self.seconds += seconds
        self.loss = None if loss is None or self.loss is None else self.loss + loss * samples

    def push(self, worker: int, seq: int) -> Push:
        """Metadata of the push that hands over this progress."""
        loss = None if self.loss is None or not self.samples else self.loss / self.samples
        return Push(worker, seq, self.base, self.steps, self.samples, self.seconds, loss)


@dataclass(slots=True)
class Cuts:
    """The cuts of this incarnation, and whether the model that they are made of is still sound."""

    sound_from: int  # number of the first push that was cut after x was last replaced
    none: bool = True  # nothing was cut
    lost: bool = False  # x holds NaN or infinity: the next version replaces it

    def not_finite(self, seq: int) -> None:
        """Push `seq` was found not to be finite."""
        self.lost = self.lost or seq >= self.sound_from

    def replaced(self, seq: int) -> None:
        """x was replaced; the next push will be `seq`."""
        self.lost, self.sound_from = False, seq


@dataclass(slots=True)
class Network:
    """Requests of one worker."""

    sending: bool = False  # the newest push is not acknowledged
    fetching: int = 0  # number of the fetch under way, or 0
    fetches: int = 0  # number of the newest fetch, carried or not
    queries: int = 0  # number of the newest query

    @property
    def idle(self) -> bool:
        return not (self.sending or self.fetching)
