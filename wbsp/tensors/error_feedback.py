"""Both ends of a format that loses something: what becomes of the rest, and what is made of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wbsp.tensors.codecs import Codec
from wbsp.tensors.ops import is_finite


def advanced(wire: Codec, vector: np.ndarray, words: np.ndarray) -> np.ndarray:
    """`vector`, float32 [size], plus one encoded difference after the other, in their order.

    Each sum is rounded before the next, so that the result is the last version, bit for bit.
    Raises ValueError for words that no encoder makes.
    """
    while words.size:
        length = wire.length(words, vector.size)
        change = wire.decode(words[:length], vector.size)
        vector = np.add(vector, change, out=change)
        words = words[length:]
    return vector


class Sent(NamedTuple):
    """What was sent of a vector."""

    words: np.ndarray
    vector: np.ndarray  # what they mean, float32 [size]; the caller's


class ErrorFeedback:
    """Sender of vectors of one size, one after the other: what a format loses of one is added to
    the next.

        u = vector + unsent;  sent = decode(encode(u));  unsent = u - sent

    So nothing is lost but what is unsent when no other vector follows. Source: Seide et al. 2014
    (1-bit SGD); Qsparse-local-SGD, Basu et al. 2019, arXiv 1906.02367, keeps it beside the model as
    is done here [known]. The subtraction is exact for all formats here, as long as nothing
    overflows.

    unsent: float32 [size], or None; an array that is not written to again
    """

    def __init__(self, wire: Codec, unsent: np.ndarray | None = None):
        self.wire = wire
        self.unsent = unsent

    def send(self, vector: np.ndarray) -> Sent:
        """`vector`: float32 [size], this object's from here on.

        What is sent of a vector that is not finite is not finite, and leaves `unsent` as it was.
        """
        if self.wire.lossless and self.unsent is None:
            return Sent(vector, vector)
        own = vector if vector.flags.writeable else np.empty_like(vector)
        if self.unsent is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # is not finite then
                vector = np.add(vector, self.unsent, out=own)
        words = self.wire.encode(vector)
        sent = self.wire.decode(words, vector.size)
        if self.wire.lossless:
            self.unsent = None
        elif is_finite(sent):
            self.unsent = np.subtract(vector, sent, out=own)
        return Sent(words, sent)
