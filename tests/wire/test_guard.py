"""What strangers' connections may cost a server; real sockets."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time

import pytest
import zmq
from hostile_peer import RawPeer
from jobs import until

from wbsp.wire import guard
from wbsp.wire.messages.codec import MAX_MESSAGE
from wbsp.wire.sockets import ServerSocket

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts bytes for us")
ENDLESS = "an endless message"


@pytest.fixture
def server():
    server = ServerSocket("localhost", 0, members=1)
    yield server
    server.close()


def cuts(server, most=1000):
    """Send parts of one message until the connection is cut; return how many that took."""
    found = {}
    with RawPeer(server.port) as peer:
        for number in range(most):
            try:
                peer.part(1 << 20)
            except OSError:
                return number, found
            time.sleep(0.001)
            found |= server.watch()
    return most, found


@linux
def test_a_message_without_an_end_is_cut_off(server):
    for _ in range(3):
        parts, found = cuts(server)
        assert parts < 50
        assert found[ENDLESS] == 1
    until(lambda: server.watch() is not None and not server.guard.strangers, "all to be gone")


@linux
def test_all_strangers_share_one_limit_of_unread_bytes(server):
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(RawPeer(server.port)) for _ in range(10)]
        for peer in peers:
            peer.part(MAX_MESSAGE // 4)
        def cut():
            return ENDLESS in server.watch()
        until(cut, "the first to be cut")


def becomes_a_member(server, peer):
    """The identity of its socket."""
    peer.socket.sendall(b"\x00\x05hello")
    assert server.socket.poll(10_000)
    identity, hello = server.socket.recv_multipart(copy=False)
    server.received(hello, True)
    return identity.bytes


def test_a_message_is_of_its_connection_also_when_that_has_ended(server):
    """A worker's last message may be read after its connection has ended."""
    def read():
        assert server.socket.poll(10_000)
        return server.received(server.socket.recv_multipart(copy=False)[1], True)

    with RawPeer(server.port) as peer:
        for _ in range(2):
            peer.socket.sendall(b"\x00\x05hello")
        line = read()
        assert line is not None
    until(lambda: server.watch() is not None
          and line not in server.guard._members.values(), "the end to be seen")
    assert read() is line
    with RawPeer(server.port) as peer:
        peer.socket.sendall(b"\x00\x05hello")
        assert read() is not line


def test_the_next_process_at_an_address_is_not_trusted_as_the_last(server):
    """Its connection gets the descriptor of the one that has ended, of which the server has not
    been told yet."""
    def read(from_member):
        assert server.socket.poll(10_000)
        return server.received(server.socket.recv_multipart(copy=False)[1], from_member)

    with RawPeer(server.port) as peer:
        peer.socket.sendall(b"\x00\x05hello")
        first = read(False)
    assert server.monitor.poll(10_000)  # which shows that it is closed
    with RawPeer(server.port) as peer:
        peer.socket.sendall(2 * b"\x00\x05hello")
        line = read(False)
        assert line is not first
        server.watch()
        assert read(True) is line


def assert_cut_for_too_much(server, peer):
    """A member whose message has no end."""
    server.watch()
    found = {}
    with contextlib.suppress(OSError):
        for _ in range(500):
            peer.part(1 << 20)
            found |= server.watch()
    until(lambda: found or server.watch(), "the member to be cut")


@linux
def test_a_member_may_have_one_model_in_transit_and_no_more(server):
    context = zmq.Context()
    member = context.socket(zmq.DEALER)
    member.routing_id = b"member"
    member.connect(f"tcp://127.0.0.1:{server.port}")
    member.send(b"hello")
    assert server.socket.poll(10_000)
    server.received(server.socket.recv_multipart(copy=False)[1], True)
    assert not server.guard.strangers or server.watch() is not None
    for _ in range(60):
        member.send_multipart([b"update", bytes(1 << 20)])
    for _ in range(100):  # the server is busy with something else
        assert not server.watch()
        time.sleep(0.002)
    for _ in range(60):
        assert server.socket.poll(10_000)
        server.received(server.socket.recv_multipart(copy=False)[1], True)
        assert not server.watch()
    context.destroy(0)
    with RawPeer(server.port, b"other") as peer:
        becomes_a_member(server, peer)
        assert_cut_for_too_much(server, peer)


@linux
def test_a_member_that_reads_nothing_is_cut_off(server):
    with RawPeer(server.port, b"deaf") as peer:
        identity = becomes_a_member(server, peer)
        for _ in range(100):  # more than the system's buffers hold
            with contextlib.suppress(zmq.Again):
                server.socket.send_multipart([identity, bytes(1 << 20)], zmq.NOBLOCK)
        assert_cut_for_too_much(server, peer)


@linux
def test_only_members_with_unfinished_messages_are_checked(server, monkeypatch):
    """To look at each of a thousand members after each of its messages takes a server's time."""
    looks = []
    look = guard._Connection.look
    monkeypatch.setattr(guard._Connection, "look",
                        lambda *args: looks.append(args) or look(*args))
    with RawPeer(server.port, b"member") as peer:
        becomes_a_member(server, peer)
        server.watch()
        looks.clear()
        for _ in range(20):
            peer.socket.sendall(b"\x00\x05hello")
            assert server.socket.poll(10_000)
            server.received(server.socket.recv_multipart(copy=False)[1], True)
            assert not server.watch()
        assert not looks
        peer.part(1 << 10)
        until(lambda: server.watch() or looks, "the part to be looked at")


@linux
def test_a_stranger_is_checked_though_its_descriptor_was_a_members(monkeypatch):
    """A member has sent a message and left; the system gives its descriptor to the next."""
    looks = []
    monkeypatch.setattr(guard._Connection, "look", lambda self, most=0: looks.append(self))
    watch = guard.ConnectionGuard(1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        member, stranger = (socket.create_connection(listener.getsockname()) for _ in range(2))
    with contextlib.closing(watch), member, stranger:
        watch.accepted(member.fileno())
        watch.delivered(member.fileno(), from_member=True)
        watch.closed(member.fileno())
        os.dup2(stranger.fileno(), member.fileno())
        watch.accepted(member.fileno())
        watch.check()
    assert looks


def test_silent_connections_beyond_a_number_are_cut_the_oldest_first(server):
    peers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    most = 0
    def few():
        nonlocal most
        server.watch()
        most = max(most, server.guard.strangers)
        return server.guard.strangers and most > 60
    until(few, "the connections to be seen")
    def oldest_is_cut():
        server.watch()
        peers[0].settimeout(0.1)
        try:
            data = peers[0].recv(1000)  # libzmq's greeting may come first
            return data == b""
        except TimeoutError:
            return False
        except OSError:
            return True
    until(oldest_is_cut, "the oldest to be cut")
    server.watch()
    assert server.guard.strangers <= 66
    context = zmq.Context()
    worker = context.socket(zmq.DEALER)
    worker.connect(f"tcp://127.0.0.1:{server.port}")
    worker.send(b"hello")
    assert server.socket.poll(10_000), "a worker still gets through"
    context.destroy(0)
    for peer in peers:
        peer.close()
    until(lambda: server.watch() is not None and not server.guard.strangers, "all to be gone")


def test_a_server_takes_as_many_files_as_it_may(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft >= min(4096, hard) or soft == resource.RLIM_INFINITY


@linux
def test_the_kernel_chooses_a_members_buffer_again():
    """A stranger's is small, so that it cannot send more than is noticed in time."""
    with socket.create_server(("127.0.0.1", 0)) as listener, \
            socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
        def size():
            return accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

        def locked():
            return accepted.getsockopt(socket.SOL_SOCKET, guard._SO_BUF_LOCK)

        try:
            assert not locked()
        except OSError:
            pytest.skip("this kernel does not give a buffer back")
        connections = guard.ConnectionGuard(members=1)
        before = size()
        connections.accepted(accepted.fileno())
        assert size() == 2 * guard._SLOW and locked()  # Linux doubles what it is asked for
        connections.delivered(accepted.fileno(), from_member=True)
        assert size() >= before and not locked()
        connections.close()


def test_a_low_limit_of_open_files_is_reported(monkeypatch):
    """A server that can open no more files stops, and the reason would be unknown."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (30, 30))
    assert "can open 30 files, but 8 workers may need 176: if" in guard.too_few_files(8)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4096, 4096))
    assert guard.too_few_files(8) is None


@linux
def test_a_member_that_sends_faster_than_it_is_read_is_cut_off(server):
    """libzmq holds up no connection: small messages take more memory than their bytes."""
    server.guard.allow(0)
    data = 10_000 * b"\x00\x05hello"
    with RawPeer(server.port, b"fast") as peer:
        becomes_a_member(server, peer)
        server.watch()
        found = {}
        for _ in range(1000):
            with contextlib.suppress(OSError):
                peer.socket.sendall(data)
            server.guard.reads(behind=True)
            for _ in range(64):
                assert server.socket.poll(10_000)
                _, hello = server.socket.recv_multipart(copy=False)
                server.received(hello, True)
            found |= server.watch()
            if found:
                break
        assert list(found) == ["an endless message of a worker"]


@linux
def test_unread_bytes_of_a_connection_count_until_they_are_read(server):
    """Or each new one could leave as much again."""
    server.guard._left = guard._OF_STRANGERS
    with RawPeer(server.port) as peer:
        peer.part(1000)
        server.guard.reads(behind=True)
        until(lambda: "an endless message" in server.watch(), "the next stranger to be cut")
    server.guard.reads(behind=False)
    server.watch()
    with RawPeer(server.port) as peer:
        peer.part(1000)
        assert not server.watch()


def test_a_ping_after_unread_messages_on_a_breaking_connection_drops_no_other_peer(tmp_path):
    """libzmq aborted the process, where it held the connection up."""
    code = """
import socket, struct, sys, time
sys.path[:0] = ["tests/helpers"]
from hostile_peer import RawPeer
from wbsp.wire.sockets import ServerSocket
server = ServerSocket("localhost", 0)
for _ in range(5):
    peer = RawPeer(server.port)
    peer.socket.sendall(20 * b"\\x00\\x05hello" + b"\\x04\\x07\\x04PING\\0\\0")
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.socket.close()
    time.sleep(0.05)
    while server.socket.poll(50):
        server.socket.recv_multipart()
server.close()
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
