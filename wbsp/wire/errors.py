"""Why a member of a run cannot continue."""

from __future__ import annotations


class TransportError(RuntimeError):
    """The server cannot be reached, was lost, or refused this worker; see the message."""


class ForeignServer(TransportError):
    """The process at the server's address has another token, or is no server of wbsp."""


class RunOver(TransportError):
    """The server refused this worker because its run has ended.

    Attributes:
        follows: another run of that server follows.
    """

    def __init__(self, reason: str, follows: bool = False):
        super().__init__(reason)
        self.follows = follows


class ServerEnds(TransportError):
    """The server refused this worker because it ends, and serves no other run."""


def refused(reason: str, over: bool, ends: bool = False, follows: bool = False) -> TransportError:
    """Return the error of a refused worker.

    Args:
        reason: of the refusal.
        over: the run has ended.
        ends: no other run follows.
        follows: another run of that server follows.
    """
    why = f"the server refused: {reason}"
    return ServerEnds(why) if ends else RunOver(why, follows) if over else TransportError(why)
