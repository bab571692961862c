"""ZeroMQ sockets as wbsp uses them: addresses, limits, and CURVE from a shared token.

Without a token a server binds to the loopback interface only. With one, a key pair for each side
is derived from it; libzmq then encrypts all traffic, and each side proves that it knows the token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import pathlib
from typing import NamedTuple

import zmq
import zmq.auth
import zmq.auth.thread
import zmq.utils.monitor
from zmq.utils import z85

from wbsp.wire.memory import keep_freed
from wbsp.wire.messages import MAX_MESSAGE

_MIN_TOKEN = 16  # bytes; a shorter secret can be guessed from the public keys on the wire
_PING_MS = 1000  # between two pings of an idle connection
_PONG_MS = 10_000  # without a sign of life, after which the connection counts as broken
# Bytes on their way within a machine: few enough to stay in the processor's caches. Over a network
# the kernel chooses, by the line's delay.
_LOCAL_BUFFER = 3 << 17


class Keys(NamedTuple):
    """CURVE key pairs (Z85 text) of both sides."""

    server_public: bytes
    server_secret: bytes
    worker_public: bytes
    worker_secret: bytes


def read_token(path: str) -> bytes:
    """Return the secret in the file. Raises ValueError or OSError in one clear line."""
    token = pathlib.Path(path).read_bytes().strip()
    if len(token) < _MIN_TOKEN:
        raise ValueError(f"token file {path} holds {len(token)} bytes; at least {_MIN_TOKEN} are "
                         f"needed: openssl rand -hex 32 > {path}")
    return token


def derive_keys(token: bytes) -> Keys:
    """Derive both sides' keys; slow on purpose, so that guessing tokens is."""
    pairs = []
    for side in (b"wbsp-server", b"wbsp-worker"):
        secret = z85.encode(hashlib.scrypt(token, salt=side, n=1 << 14, r=8, p=1, dklen=32))
        pairs += [zmq.curve_public(secret), secret]
    return Keys(*pairs)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def endpoint(host: str, port: int) -> str:
    """`tcp://` address; IPv6 hosts may come with or without brackets."""
    if host == "localhost":
        host = "127.0.0.1"
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"tcp://{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """'host:port' -> (host, port). Raises ValueError."""
    host, colon, port = address.rpartition(":")
    number = port.isascii() and port.isdigit()
    if not (colon and host and number and 0 < int(port) < 65536):
        raise ValueError(f"address {address!r} is not host:port, for example localhost:2606")
    return host, int(port)


def _prepare(socket: zmq.Socket, host: str) -> None:
    socket.linger = 0
    socket.maxmsgsize = MAX_MESSAGE
    socket.ipv6 = True
    # Answered by libzmq's own threads: a process whose Python is busy for a minute is not dead.
    socket.heartbeat_ivl, socket.heartbeat_timeout = _PING_MS, _PONG_MS
    if is_loopback(host):
        socket.sndbuf = _LOCAL_BUFFER


class ServerSocket:
    """A bound ROUTER and its monitor, which sees peers that fail before their first message."""

    def __init__(self, host: str, port: int, token: bytes | None = None):
        """Raises ValueError for an open address without a token, OSError for a taken port."""
        if token is None and not is_loopback(host):
            raise ValueError(
                f"refusing to listen on {host} without a token: anyone on that network could join. "
                "Give every process the same secret with --token_file=FILE "
                "(openssl rand -hex 32 > FILE), or use --host=localhost")
        keep_freed()
        self.context = zmq.Context()
        self._authenticator = None
        self.socket = self.context.socket(zmq.ROUTER)
        _prepare(self.socket, host)
        self.socket.router_mandatory = True  # a message to a peer that is gone raises, not vanishes
        self.socket.router_handover = True  # a worker that reconnects keeps its identity
        self.socket.sndhwm = 0  # bounded by the protocol: one model per worker at a time
        if token is not None:
            keys = derive_keys(token)
            self._authenticator = zmq.auth.thread.ThreadAuthenticator(self.context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback(credentials_provider=_Only(keys))
            self.socket.curve_server = True
            self.socket.curve_publickey = keys.server_public
            self.socket.curve_secretkey = keys.server_secret
        self.monitor = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        try:
            self.socket.bind(endpoint(host, port))
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"cannot listen on {host}:{port}: {error.strerror}; is another server "
                          "running there? Choose another --port_base") from None
        self.port = int(self.socket.last_endpoint.rpartition(b":")[2].rstrip(b"\0"))

    def reaches(self, identity: bytes, message: bytes) -> bool:
        """Send a message that may get lost; False when the peer's connection is gone."""
        try:
            self.socket.send_multipart([identity, message], zmq.NOBLOCK)
            return True
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise

    def failed_handshakes(self) -> int:
        """Number of peers since the last call that did not speak the protocol or know the token."""
        count = 0
        while self.monitor.poll(0):
            zmq.utils.monitor.recv_monitor_message(self.monitor)
            count += 1
        return count

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)
        if self._authenticator is not None:
            self._authenticator.stop()
        self.context.destroy(0)


class _Only:
    """Admits exactly the worker key that the token gives."""

    def __init__(self, keys: Keys):
        self._key = keys.worker_public

    def callback(self, domain: str, key: bytes) -> bool:
        return hmac.compare_digest(key, self._key)


def worker_socket(context: zmq.Context, host: str, port: int, identity: bytes,
                  token: bytes | None = None) -> zmq.Socket:
    """Return a DEALER that connects (and reconnects) to the server."""
    socket = context.socket(zmq.DEALER)
    _prepare(socket, host)
    socket.routing_id = identity
    socket.sndhwm = 16  # chunks; so that a heartbeat never queues behind a whole model
    socket.reconnect_ivl, socket.reconnect_ivl_max = 100, 2000  # milliseconds
    if token is not None:
        keys = derive_keys(token)
        socket.curve_serverkey = keys.server_public
        socket.curve_publickey, socket.curve_secretkey = keys.worker_public, keys.worker_secret
    return socket
