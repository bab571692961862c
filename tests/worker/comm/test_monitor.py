"""Host names with several addresses: the one with a server is found."""

import contextlib
import itertools
import socket
import threading
import time

import pytest
import zmq
from fake_worker import FakeWorker
from jobs import Jobs, free_port, until

from wbsp.access import Access
from wbsp.wire.errors import TransportError
from wbsp.wire.liveness import SERVER
from wbsp.wire.sockets import worker_socket
from wbsp.worker.comm.monitor import Monitor, Route
from wbsp.worker.comm.transport import Transport


@pytest.fixture
def names(monkeypatch):
    """name -> addresses; the system resolves all other names."""
    known = {}
    system = socket.getaddrinfo

    def look_up(host, port, *args, **options):
        if host not in known:
            return system(host, port, *args, **options)
        if not known[host]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET6 if ":" in where else socket.AF_INET, socket.SOCK_STREAM, 6, "",
                 (where, port)) for where in known[host]]
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@pytest.mark.parametrize("addresses", [["::1", "127.0.0.1"], ["127.0.0.9", "::1", "127.0.0.1"],
                                       ["127.0.0.1", "::1"]])
def test_a_server_is_found_at_any_address_of_its_name(tmp_path, names, addresses):
    names["several.example"] = addresses
    with Jobs(tmp_path) as jobs:
        server = jobs.server("--host=127.0.0.1", sync="asp", workers=1).listens()
        port = server.address.rpartition(":")[2]
        FakeWorker(f"several.example:{port}", 0, steps=3).ends()
        server.ends_well()


def test_a_server_that_moves_is_found_again(names):
    """As in Kubernetes, where a name may refer to another pod at any moment."""
    names["moving.example"] = ["127.0.0.1"]
    connects = []

    class Socket:
        def connect(self, endpoint):
            connects.append(endpoint)

        def disconnect(self, endpoint):
            assert endpoint == connects[-1]
    route = Route(Socket(), "moving.example:1")
    for now in range(10):
        route.turn(now)
    assert connects == ["tcp://127.0.0.1:1"]
    names["moving.example"] = ["127.0.0.2"]
    for now in range(10, 20):
        route.turn(now)
    assert connects == ["tcp://127.0.0.1:1", "tcp://127.0.0.2:1"]


def test_an_unknown_host_name_is_named(names):
    names["nowhere.example"] = []
    transport = Transport(Access("nowhere.example:2606"), 0, say=lambda text: None)
    with pytest.raises(TransportError, match="nowhere.example is not known"):
        transport.hello({}, 1.0)


def test_a_host_name_that_is_registered_later_is_found(tmp_path, names):
    names["later.example"] = []
    with Jobs(tmp_path) as jobs:
        server = jobs.server(sync="asp", workers=1).listens()
        member = FakeWorker(f"later.example:{server.address.rpartition(':')[2]}", 0, steps=3)
        until(lambda: any("waiting for the server" in line for line in member.said), "a line")
        names["later.example"] = ["127.0.0.1"]
        member.ends()
        server.ends_well()


def test_an_address_that_accepts_a_connection_is_given_time():
    class Socket:
        connects = 0

        def connect(self, endpoint):
            self.connects += 1

        def disconnect(self, endpoint):
            raise zmq.ZMQError  # libzmq has given it up by itself
    sock = Socket()
    route = Route(sock, "127.0.0.1:1")
    route._resolve = lambda: ["tcp://a:1", "tcp://b:1"]
    route.turn(0.0)
    route.accepted(0.1)
    for tenth in range(1, 300):
        route.turn(tenth / 10)
    assert sock.connects == 1
    route.turn(31.0)
    assert sock.connects == 2


def there(connection):
    """A connection is made, as far as was read."""
    return connection.made and not connection.broken


def read_until(connection, condition):
    while not condition():
        assert connection.socket.poll(10_000)
        connection.event(100.0)


@pytest.fixture(params=["first", "again"])
def connected(request):
    """A connection that is made, for the first time or again, of which nothing was read yet; the
    worker knows another address, too, where nobody listens. libzmq names an address otherwise when
    a connection to it was broken."""
    context = zmq.Context()
    ports = free_port(), free_port()
    sock = worker_socket(context, ["127.0.0.1"], b"worker")
    connection = Monitor(sock, Access(",".join(f"127.0.0.1:{port}" for port in ports)), print)

    def serve():
        server = context.socket(zmq.ROUTER)
        server.bind(f"tcp://127.0.0.1:{ports[0]}")
        connection.check(0.0)
        sock.send(b"")
        server.recv_multipart()
        return server
    server = serve()
    if request.param == "again":
        read_until(connection, lambda: there(connection))
        server.close(0)
        read_until(connection, lambda: connection.broken)
        server = serve()
    yield connection
    sock.disable_monitor()
    context.destroy(0)


def test_a_connection_made_in_the_turn_of_the_next_address_is_dropped(connected):
    """As under load, to a restarted server: no answer would ever come."""
    connected.route.turn(200.0)
    while connected.socket.poll(300):  # until the other address is tried more seldom
        connected.event(200.0)
        assert not there(connected)
    clock = itertools.count(201.0, 0.1)

    def made():
        now = next(clock)
        connected.check(now)
        if connected.socket.poll(10):
            connected.event(now)
        return there(connected)
    until(made, "a connection, when the first address has its turn again")


def test_events_of_an_address_are_read_before_the_next_is_tried(connected):
    connected.check(200.0)
    read_until(connected, lambda: there(connected))
    assert not connected.route.moved


class Accepts:
    """An address that accepts and ends connections, as a forwarder without its server does."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                self._listener.accept()[0].close()

    def close(self):
        self._listener.close()


@pytest.mark.parametrize("made", [False, True])
def test_an_address_that_accepts_and_ends_connections_is_passed(made):
    """Before the first connection, and after the server behind it has ended."""
    context, forwarder = zmq.Context(), Accepts()
    server = context.socket(zmq.ROUTER)
    port = server.bind_to_random_port("tcp://127.0.0.1")
    sock = worker_socket(context, ["127.0.0.1"], b"worker")
    connection = Monitor(sock, Access(f"127.0.0.1:{forwarder.port},127.0.0.1:{port}"), print)
    connection.made = made
    connection._broken_since = 0.0 if made else None
    began = time.monotonic()
    try:
        while not there(connection):
            now = time.monotonic() - began
            assert now < 20, "it had its turn for too long"
            connection.check(now)
            if connection.socket.poll(10):
                connection.event(now)
    finally:
        sock.disable_monitor()
        context.destroy(0)
        forwarder.close()


def test_an_absent_server_is_awaited_longer_than_a_hanging_one(connected):
    """It is silent, too."""
    read_until(connected, lambda: there(connected))
    connected.liveness.heard = 0.0
    connected.check(SERVER.silent)
    with pytest.raises(TransportError, match="connected, but silent"):
        connected.check(SERVER.silent + 1)
    connected._broken_since = 0.0
    connected.check(599.0)
    with pytest.raises(TransportError, match="no connection for 600 s"):
        connected.check(601.0)


def test_a_worker_that_has_slept_has_its_patience_left(monkeypatch):
    """It could neither receive from its server nor reach it; received messages wait to be read."""
    context = zmq.Context()
    connection = Monitor(worker_socket(context, ["127.0.0.1"], b"worker"),
                         Access("127.0.0.1:1", patience=600.0), lambda text: None)
    connection.made, connection.liveness.heard = True, 10.0
    with pytest.raises(TransportError, match="silent for 300 s"):
        connection.check(3610.0)
    connection.woke(3610.0, 3600.0)
    connection.check(3610.0)
    connection.turn_away("in waiting", 3620.0)
    connection.woke(7220.0, 3600.0)
    connection.check(7220.0)
    with pytest.raises(TransportError, match="no connection for 600 s"):
        connection.check(7821.0)
    context.destroy(0)
