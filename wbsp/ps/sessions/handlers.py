"""Tables of handlers: each part of the server lists its messages once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import zmq

from wbsp.core.messages import Message
from wbsp.wire.sockets import peer_address


class Peer(NamedTuple):
    """The sender of a message without a session: a worker, a standby, or a stranger."""

    identity: bytes  # of its socket
    line: object  # represents its connection; None: not known
    frame: zmq.Frame | None = None  # the first one of the message

    @property
    def host(self) -> str:
        """Return the address of its machine."""
        assert self.frame is not None
        return peer_address(self.frame)


@dataclass
class Handlers:
    """The methods of one part of the server, or of several, by the type of message.

    Attributes:
        anybody: methods with arguments (peer, message).
        session: methods with arguments (session, message), and the floats if the message has some.
    """

    anybody: dict[type[Message], Callable[[Peer, Any], None]] = field(default_factory=dict)
    session: dict[type[Message], Callable[..., None]] = field(default_factory=dict)

    def add(self, other: Handlers) -> None:
        """Add the methods of another part."""
        assert not (self.anybody.keys() & other.anybody or self.session.keys() & other.session)
        self.anybody |= other.anybody
        self.session |= other.session
