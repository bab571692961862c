"""Which message goes to which method: each part of the server says once what it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import zmq

from wbsp.core.messages import Message
from wbsp.wire.sockets import peer_address


class Peer(NamedTuple):
    """The sender of a message that names no session: a worker, a standby, or anybody."""

    identity: bytes  # of its socket
    line: object  # stands for its connection; None: that is not known
    frame: zmq.Frame | None = None  # the first one of the message

    @property
    def host(self) -> str:
        """Address of its machine."""
        assert self.frame is not None
        return peer_address(self.frame)


@dataclass
class Handlers:
    """The methods of one part of the server, or of several, by the type of message.

    anybody: takes (peer, message)
    session: takes (session, message), and the floats of a message that may have some
    """

    anybody: dict[type[Message], Callable[[Peer, Any], None]] = field(default_factory=dict)
    session: dict[type[Message], Callable[..., None]] = field(default_factory=dict)

    def add(self, other: Handlers) -> None:
        """Take over the methods of another part."""
        assert not (self.anybody.keys() & other.anybody or self.session.keys() & other.session)
        self.anybody |= other.anybody
        self.session |= other.session
