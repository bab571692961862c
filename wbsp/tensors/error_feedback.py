"""Both ends of a lossy codec: the sender keeps what is lost, the receiver adds what arrives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wbsp.tensors.codecs import Codec
from wbsp.tensors.ops import is_finite


def advanced(wire: Codec, vector: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return `vector`, float32 [size], plus one encoded difference after the other, in order.

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
    vector: np.ndarray  # the decoded words, float32 [size]; the caller's


class ErrorFeedback:
    """Sender of vectors of one size, one after the other, that adds each one's loss to the next.

        u = vector + unsent;  sent = decode(encode(u));  unsent = u - sent

    So only the rest of the last vector is lost. Source: Seide et al. 2014 (1-bit SGD);
    Qsparse-local-SGD, Basu et al. 2019, arXiv 1906.02367, keeps the rest beside the model, as here
    [known]. The subtraction is exact for all codecs here, as long as nothing overflows.

    unsent: float32 [size], or None; an array that is not written to again
    """

    def __init__(self, wire: Codec, unsent: np.ndarray | None = None):
        self.wire = wire
        self.unsent = unsent

    def send(self, vector: np.ndarray) -> Sent:
        """Encode `vector`, float32 [size], which this object then owns.

        A vector that is not finite is sent as such, and leaves `unsent` unchanged.
        """
        if self.wire.lossless and self.unsent is None:
            return Sent(vector, vector)
        own = vector if vector.flags.writeable else np.empty_like(vector)
        if self.unsent is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # the sum is not finite then
                vector = np.add(vector, self.unsent, out=own)
        words = self.wire.encode(vector)
        sent = self.wire.decode(words, vector.size)
        if self.wire.lossless:
            self.unsent = None
        elif is_finite(sent):
            self.unsent = np.subtract(vector, sent, out=own)
        return Sent(words, sent)
