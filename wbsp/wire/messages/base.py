"""Bounds of every message, and the errors for a message out of bounds."""

from __future__ import annotations

from wbsp.limits import MAX_FLOATS

# Floats in one message (1 MiB): the unit of rate limits and turns, and a bound on peers' messages.
CHUNK = 1 << 18
MAX_MESSAGE = 4 * CHUNK + (1 << 20)  # bytes; libzmq drops a peer that sends more
MAX_MODEL = MAX_FLOATS


class WireError(ValueError):
    """A message that no correct peer sends; it had no effect."""


class Impossible(WireError):
    """A member's message that does not decode, or whose fields contradict each other or the run.

    The member would repeat it, and wait for the answer forever.
    """
