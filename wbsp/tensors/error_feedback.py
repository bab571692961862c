"""Both ends of a lossy codec: the sender keeps what is lost, the receiver adds what arrives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wbsp.tensors import blocks
from wbsp.tensors.blocks import Blocks
from wbsp.tensors.codecs import Codec
from wbsp.tensors.ops import is_finite


def advanced(wire: Codec, vector: np.ndarray, words: np.ndarray,
             in_blocks: bool = False) -> np.ndarray:
    """Return `vector`, float32 [size], plus one encoded difference after the other, in order.

    Each sum is rounded before the next, so that the result is the last version, bit for bit.
    Raises ValueError for words that no encoder makes.

    Args:
        in_blocks: of each encoding, only the blocks come that are not zero.
    """
    if in_blocks and not wire.in_blocks:
        raise ValueError(f"blocks of {wire.name}")
    while words.size:
        length = blocks.length(words) if in_blocks else wire.length(words, vector.size)
        encoded = words[:length]
        if in_blocks:
            encoded = blocks.read(encoded, wire.words(vector.size)).whole()
        change = wire.decode(encoded, vector.size)
        vector = np.add(vector, change, out=change)
        words = words[length:]
    return vector


class Sent(NamedTuple):
    """The sent part of a vector."""

    words: np.ndarray
    vector: np.ndarray  # the decoded words, float32 [size]; the caller's


class ErrorFeedback:
    """Sender of vectors of one size, one after the other, that adds each one's loss to the next.

        u = vector + unsent;  sent = decode(encode(u));  unsent = u - sent

    So only the rest of the last vector is lost. Source: Seide et al. 2014 (1-bit SGD);
    Qsparse-local-SGD, Basu et al. 2019, arXiv 1906.02367, keeps the rest outside the model, as here
    [known]. The subtraction is exact for all codecs here, as long as nothing overflows.

    Of a vector that comes as blocks, nothing else is sent: what is unsent in another block waits
    until a vector has that block, and where nothing is unsent, nothing will be.

    Attributes:
        unsent: float32 [size], or None; an array that is not written to again.
    """

    def __init__(self, wire: Codec, unsent: np.ndarray | None = None):
        self.wire = wire
        self.owe(unsent)

    @property
    def unsent(self) -> np.ndarray | None:
        self._known = True
        return self._unsent

    def owe(self, unsent: np.ndarray | None) -> None:
        """Add this to the next vector, in place of the unsent part."""
        self._unsent = unsent
        self._known = True  # to others, so that it must not be written to

    def send(self, vector: np.ndarray | Blocks, base: np.ndarray | None = None) -> Sent:
        """Encode `vector`, float32 [size], which this object then owns.

        A vector that is not finite is sent as such, and leaves `unsent` unchanged.

        Args:
            base: what is sent is added to this vector: blocks that would not change it wait, too.
        """
        if isinstance(vector, Blocks):
            return self._send_blocks(vector, base)
        if self.wire.lossless and self._unsent is None:
            return Sent(vector, vector)
        own = vector if vector.flags.writeable else np.empty_like(vector)
        due = vector
        if self._unsent is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # the sum is not finite then
                due = np.add(vector, self._unsent, out=own)
        words = self.wire.encode(due)
        sent = self.wire.decode(words, due.size)
        if self.wire.lossless:
            self._unsent = None
        elif is_finite(sent):
            self._unsent, self._known = np.subtract(due, sent, out=own), False
        return Sent(words, sent)

    def _send_blocks(self, some: Blocks, base: np.ndarray | None) -> Sent:
        where, values = some.where, some.values
        with np.errstate(over="ignore", invalid="ignore"):  # as in `send`
            if self._unsent is not None:
                values = values + blocks.of(self._unsent, where).values
            due = values
            if base is not None:
                old = blocks.of(base, where).values
                due = np.where((old + values != old).any(axis=1)[:, None], values, np.float32(0))
        words = self.wire.encode(Blocks(some.size, where, due).whole())
        sent = self.wire.decode(words, some.size)
        arrived = blocks.of(sent, where).values
        if is_finite(arrived.reshape(-1)):
            if self._unsent is None:
                self._unsent = np.zeros_like(sent)
            elif self._known:
                self._unsent = self._unsent.copy()
            self._known = False
            Blocks(some.size, where, values - arrived).put_into(self._unsent)
        return Sent(words, sent)
