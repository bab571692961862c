"""ZeroMQ sockets with wbsp's limits, and with CURVE keys from a shared token.

Without a token a server binds to the loopback interface only. With one, a key pair for each side
is derived from it; libzmq then encrypts all traffic, and each side proves that it knows the token.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import zmq
import zmq.auth
from zmq.utils import z85

from wbsp import timeouts
from wbsp.process.host import HOST, Host
from wbsp.tensors.buffers import keep_freed
from wbsp.wire.addresses import endpoint, is_loopback, plain_address
from wbsp.wire.guard import ROOM, ConnectionGuard
from wbsp.wire.messages.codec import MAX_MESSAGE
from wbsp.wire.proof import Challenges, mac
from wbsp.wire.rate import RateLimitedReceiver, RateLimiter

TURN = 64  # messages that are read in one go
_REMEMBERED = 64  # failed handshakes that may be forgiven
# Size in bytes of a send buffer within one machine: small enough for the processor's caches. Over a
# network the kernel chooses the size by the line's delay.
_LOCAL_BUFFER = 3 << 17
HANDSHAKE_FAILED = (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
                    | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
HANDSHAKES = 3  # failures without a reason after which the other side counts as refusing
# Detail of a failure: one side has a token, and the other has none. Only the first of the two sides
# to notice learns that.
MISMATCH = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
_OTHER_TOKEN = int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
_STRANGER = "a peer that does not speak the protocol or know the token"
_FORGIVEN = 5.0  # seconds in which a process that was refused without a token may have found it
# What a failed handshake means; libzmq does not always report more.
_FOREIGN = ("either it has another token (--token_file must name the same secret on both sides, or "
            "be absent on both), or it is not a wbsp server")


def foreign(token: bytes | None, mismatch: bool = False) -> str:
    """Return why a process that listens refuses one with this token, in one line.

    Args:
        mismatch: one of the two has no token.
    """
    why = _FOREIGN
    if token is None:
        return (f"{why}; {'it has a token, and ' if mismatch else ''}this process has none: copy "
                "that token to ~/.config/wbsp/token here, or name a copy by --token_file, or by "
                "WBSP_TOKEN_FILE")
    if mismatch:
        why += "; it has no token"
    file = getattr(token, "file", "")
    return f"{why}; this process's token is from {file}" if file else why


class Keys(NamedTuple):
    """CURVE key pairs (Z85 text) of both sides."""

    server_public: bytes
    server_secret: bytes
    worker_public: bytes
    worker_secret: bytes


@functools.lru_cache(maxsize=1)
def derive_keys(token: bytes) -> Keys:
    """Derive both sides' keys; slow on purpose, so that guessing tokens is slow, too."""
    pairs = []
    for side in (b"wbsp-server", b"wbsp-worker"):
        secret = z85.encode(hashlib.scrypt(token, salt=side, n=1 << 14, r=8, p=1, dklen=32))
        pairs += [zmq.curve_public(secret), secret]
    return Keys(*pairs)


def _prepare(socket: zmq.Socket[bytes], hosts: list[str]) -> None:
    """Set the options that both sides share."""
    socket.linger = 0
    socket.maxmsgsize = MAX_MESSAGE  # bytes of a part; libzmq drops a peer that sends more
    socket.ipv6 = True
    socket.tcp_maxrt = int(1000 * timeouts.UNACKNOWLEDGED)
    socket.sndhwm = ROOM
    if all(map(is_loopback, hosts)):
        socket.sndbuf = _LOCAL_BUFFER


class ServerSocket:
    """Bound ROUTER with its monitor, which sees peers that fail before their first message."""

    def __init__(self, host: str, port: int, token: bytes | None = None, members: int = 1,
                 on: Host = HOST):
        """
        members: largest number of workers at a time
        on:      the host that this process runs on

        Raises ValueError for an address beyond loopback without a token, OSError for a taken port.
        """
        if token is None and not is_loopback(host):
            raise ValueError(
                f"refusing to listen on {host} without a token: anyone on that network could join. "
                "Leave out --token_file, and a token is made; or give every process the same one "
                "with --token_file=FILE (openssl rand -hex 32 > FILE); or use --host=localhost")
        keep_freed()
        self.on = on
        self.closed = False
        self.context = on.network.context()
        self.token = token
        self._authenticator = None
        self.socket = self.context.socket(zmq.ROUTER)
        _prepare(self.socket, [host])
        self.socket.router_mandatory = True  # sending to a peer without a connection raises
        self.socket.router_handover = True  # a worker that reconnects keeps its identity
        self.socket.rcvhwm = 0  # the guard has the limits, and reports why it cuts
        # Bytes on the line around a short frame and around a long one; CURVE adds to both.
        self._around = (2, 9) if token is None else (35, 42)
        if token is not None:
            keys = derive_keys(token)
            self._authenticator = on.network.authenticator(self.context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback(credentials_provider=_OneKey(keys))
            self.socket.curve_server = True
            self.socket.curve_publickey = keys.server_public
            self.socket.curve_secretkey = keys.server_secret
        self.limit(None)
        self.challenges = Challenges(on.scheduler.random)
        self.guard = ConnectionGuard(members, on.network)
        self._strangers: Counter[str] = Counter()  # peers that failed, by reason
        # Those that may have had no token, with the times: one of this machine then tries the token
        # of the usual place.
        self._without: deque[tuple[float, str]] = deque(maxlen=_REMEMBERED)
        self.monitor = self.socket.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            | HANDSHAKE_FAILED)
        try:
            self.socket.bind(endpoint(host, port))
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"cannot listen on {host}:{port}: {error.strerror}; is another server "
                          f"running there? Choose another --port_base") from None
        self.port = int(self.socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2].rstrip("\0"))

    @functools.cached_property
    def contact(self) -> bytes:
        """The key of a first contact, common to processes that do not share a run's secret yet.

        It is derived from the token; without a token it is the user's key.
        """
        return contact(self.token, self.on)

    def reaches(self, identity: bytes, message: bytes) -> bool:
        """Send a message that may be lost; return False if the peer has no connection."""
        try:
            self.socket.send_multipart([identity, message], zmq.NOBLOCK)
        except zmq.Again:
            pass  # the peer has not read earlier messages
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        return True

    def dealer(self, host: str) -> zmq.Socket[bytes]:
        """Return an unconnected socket of this server for another server on `host`."""
        return worker_socket(self.context, [host], self.on.scheduler.random(16),
                             self.token)

    def limit(self, bandwidth: float | None) -> None:
        """Receive at most this number of bytes per second; None: no limit."""
        self._receiver = RateLimitedReceiver(self.socket, RateLimiter(bandwidth))

    @property
    def delay(self) -> float | None:
        """Seconds until an incoming message has arrived; None: no message is arriving."""
        return self._receiver.delay(self.on.clock.monotonic())

    def messages(self) -> Iterator[list[zmq.Frame]]:
        """Yield the messages that have arrived, at most `TURN`, so that other sources get a turn.
        """
        self.guard.reads(behind=True)
        for _ in range(TURN):
            message = self._receiver.receive(self.on.clock.monotonic())
            if message is None:
                self.guard.reads(behind=self.delay is not None)  # a rate limit delays it
                return
            yield message

    def received(self, frame: zmq.Frame, from_member: bool,
                 more: Sequence[zmq.Frame] = ()) -> object:
        """Note that a message was read; `frame` is its first after the peer's identity.

        Returns a token of the connection through which it arrived; None if that is unknown.
        """
        return self.note(self.guard, (frame, *more), from_member, self._read_monitor)

    def note(self, guard: ConnectionGuard, frames: Sequence[zmq.Frame], from_member: bool,
             catch_up: Callable[[], None] = lambda: None) -> object:
        """See `received`, for connections of this guard; `catch_up` adds new ones to it."""
        try:
            fd = frames[0].get(zmq.SRCFD)
        except zmq.ZMQError:  # libzmq does not know its connection
            return None
        # A new connection may have the descriptor of one that has just ended: a stranger's first
        # message must not count for the member that had it before.
        if not from_member or not guard.knows(fd):
            catch_up()
        short, long = self._around
        return guard.delivered(fd, from_member, sum(
            len(one) + (short if len(one) < 256 else long) for one in frames), len(frames))

    def watch(self) -> Counter[str]:
        """Enforce the limits of the connections.

        Returns the number of peers since the last call that are no workers of this run, by reason.
        """
        self._read_monitor()
        since = self.on.clock.monotonic() - _FORGIVEN
        while self._without and self._without[0][0] < since:
            self._strangers[self._without.popleft()[1]] += 1
        found = self.guard.check()
        if self._strangers:
            found.update(self._strangers)
            self._strangers.clear()
        return found

    def _read_monitor(self) -> None:
        while self.monitor.poll(0):
            event = self.on.network.event(self.monitor)
            if event["event"] == zmq.EVENT_ACCEPTED:
                self.guard.accepted(event["value"])
            elif event["event"] == zmq.EVENT_DISCONNECTED:
                self.guard.closed(event["value"])
            elif event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                for _ in range(min(HANDSHAKES, len(self._without))):
                    self._without.pop()
            else:
                self._failed(event["value"])

    def _failed(self, detail: int) -> None:
        """Note a peer whose handshake failed; `detail`: of the event."""
        file = getattr(self.token, "file", "")
        reason = _STRANGER + (f" of {file}" if file else "")
        if detail == MISMATCH:
            reason += (": it has one, and this server has none" if self.token is None else
                       ": it has none")
        if self.token is None or detail == _OTHER_TOKEN:
            self._strangers[f"{reason}: it has another" if detail == _OTHER_TOKEN else reason] += 1
            return
        if len(self._without) == _REMEMBERED:
            self._strangers[self._without.popleft()[1]] += 1
        self._without.append((self.on.clock.monotonic(), reason))

    def close(self, patience: float = 0.0) -> None:
        """Release the port; outgoing messages may take `patience` seconds."""
        self.closed = True
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.guard.close()
        self.socket.close(int(1000 * patience))
        if self._authenticator is not None:
            self._authenticator.stop()
        self.context.destroy(0)


def peer_address(frame: zmq.Frame) -> str:
    """Return the address of the machine from which a message came."""
    return plain_address(str(frame.get("Peer-Address")))


class _OneKey:
    """Authenticator that admits exactly the worker key derived from the token."""

    def __init__(self, keys: Keys):
        self._key = keys.worker_public

    def callback(self, domain: str, key: bytes) -> bool:
        return hmac.compare_digest(key, self._key)


def contact(token: bytes | None, on: Host = HOST) -> bytes:
    """Return the key of a first contact: see `ServerSocket.contact`."""
    if token is not None:
        return mac(derive_keys(token).server_secret, "first contact")
    return on.user_key()


def worker_socket(context: zmq.Context[zmq.Socket[bytes]], hosts: list[str], identity: bytes,
                  token: bytes | None = None) -> zmq.Socket[bytes]:
    """Return an unconnected DEALER for servers on `hosts`. Once connected, libzmq reconnects it.
    """
    socket = context.socket(zmq.DEALER)
    _prepare(socket, hosts)
    socket.routing_id = identity
    socket.rcvhwm = 0  # with a limit, the other side's pings would end this process: see the guard
    # libzmq's own threads answer pings: a process whose Python is busy for a minute is not dead.
    # Workers ping for both sides.
    socket.heartbeat_ivl = int(1000 * timeouts.PING)
    socket.heartbeat_timeout = socket.heartbeat_ttl = int(1000 * timeouts.PONG)
    socket.reconnect_ivl, socket.reconnect_ivl_max = 100, 2000  # milliseconds
    if token is not None:
        keys = derive_keys(token)
        socket.curve_serverkey = keys.server_public
        socket.curve_publickey, socket.curve_secretkey = keys.worker_public, keys.worker_secret
    return socket
