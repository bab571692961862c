"""Host names with several addresses: the one with a server is found."""

import itertools
import socket

import pytest
import zmq
from crew import Member
from jobs import Jobs, free_port, until

from wbsp.worker.connection import ConnectionMonitor
from wbsp.worker.route import Route
from wbsp.worker.transport import Transport, TransportError


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
        Member(f"several.example:{port}", 0, steps=3).ends()
        server.ends_well()


def test_a_server_that_moves_is_found_again(names):
    """As in Kubernetes, where a name means another pod from one moment to the next."""
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
    transport = Transport("nowhere.example:2606", 0, say=lambda text: None)
    with pytest.raises(TransportError, match="nowhere.example is not known"):
        transport.hello({}, 1.0)


def test_a_host_name_that_is_registered_later_is_found(tmp_path, names):
    names["later.example"] = []
    with Jobs(tmp_path) as jobs:
        server = jobs.server(sync="asp", workers=1).listens()
        member = Member(f"later.example:{server.address.rpartition(':')[2]}", 0, steps=3)
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


@pytest.fixture
def connected():
    """A connection that is made, of which nothing was read yet, and the server's socket; the worker
    knows another address, too, where nobody listens."""
    context = zmq.Context()
    server, sock = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    there = f"127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}"
    connection = ConnectionMonitor(sock, f"{there},127.0.0.1:{free_port()}", 60.0, print)
    connection.check(0.0)
    sock.send(b"")
    server.recv_multipart()
    yield connection
    sock.disable_monitor()
    context.destroy(0)


def test_a_connection_that_is_made_when_the_next_address_has_its_turn_is_none(connected):
    """As under load, to a server that was started again: nobody would ever answer."""
    connected._route.turn(100.0)
    for _ in "ab":  # there was a process, and it shook hands
        assert connected.monitor.poll(10_000)
        connected.event(100.0)
        assert not connected.made
    clock = itertools.count(101.0)

    def made():
        now = next(clock)
        connected.check(now)
        if connected.monitor.poll(10):
            connected.event(now)
        return connected.made
    until(made, "a connection, when the first address has its turn again")


def test_what_happened_at_an_address_is_read_before_the_next_has_its_turn(connected):
    connected.check(100.0)
    while not connected.made:
        assert connected.monitor.poll(10_000)
        connected.event(100.0)
    assert not connected._route.moved
