"""What bounds every message, and what is raised for one that is out of bounds."""

from __future__ import annotations

from wbsp.limits import MAX_FLOATS

# Floats in one message (1 MiB): a unit for rate limits and turns, and a bound on a peer's messages.
CHUNK = 1 << 18
MAX_MESSAGE = 4 * CHUNK + (1 << 20)  # bytes; libzmq drops a peer that sends more
MAX_MODEL = MAX_FLOATS


class WireError(ValueError):
    """A message that no correct peer sends; it changed nothing."""


class Impossible(WireError):
    """What a member says of itself, and cannot be: to go on with it would be to wait in vain."""
