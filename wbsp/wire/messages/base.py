"""What every message is, and what bounds it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from wbsp.limits import MAX_FLOATS, Bytes, Random

PROTOCOL = 13  # to be raised when a message, or a type that a message embeds, changes
# Floats in one message (1 MiB): a unit for rate limits and turns, and a bound on a peer's messages.
CHUNK = 1 << 18
MAX_MESSAGE = 4 * CHUNK + (1 << 20)  # bytes; libzmq drops a peer that sends more
MAX_MODEL = MAX_FLOATS
NONE = -1  # in place of a version


class WireError(ValueError):
    """A message that no correct peer sends; it changed nothing."""


class Impossible(WireError):
    """What a member says of itself, and cannot be: to go on with it would be to wait in vain."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages. A message is sent as its type's name and its fields' values.

    Each number, text, list and dict has its bounds in its type: see `wbsp.limits`.
    """


class Place(NamedTuple):
    """Where floats lie: number of a segment, and bytes in it; as a peer says."""

    segment: Random
    offset: Bytes
    nbytes: Bytes

    def within(self, vector: np.ndarray) -> memoryview:
        """What lies there in the segment that is `vector`, float32 [size]. Raises WireError."""
        end = self.offset + self.nbytes
        if not 0 <= self.offset < end <= vector.nbytes:
            raise WireError(f"bytes {self.offset} to {end} of a segment of {vector.nbytes}")
        return vector.data.cast("B")[self.offset:end]
