"""The socket between a server and a worker of one machine: who is at its other end, what comes."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import zmq

from wbsp.limits import SPANS
from wbsp.process.host import HOST
from wbsp.sync.base import Push
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.base import WireError
from wbsp.wire.shm.link import Door, connect, gone
from wbsp.wire.shm.segments import Segment, create

pytestmark = pytest.mark.skipif(not HOST.memory.available(),
                                reason="no shared memory on this system")
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture
def ends():
    """The server's end and the worker's."""
    door = Door(True)
    server = connect(door.name)
    worker = door.accept()
    yield server, worker
    for one in (server, worker, door):
        one.close()


def received(link):
    return [bytes(frame) for frame in link.recv_multipart()]


def test_messages_come_one_by_one_in_both_directions(ends):
    for here, there in (ends, ends[::-1]):
        for data in (b"one", b"two", bytes(10_000)):
            here.send_multipart((data,))
        assert [received(there) for _ in range(3)] == [[b"one"], [b"two"], [bytes(10_000)]]
        with pytest.raises(zmq.Again):
            there.recv_multipart()


def test_a_segment_comes_before_the_message_that_follows_it(ends):
    server, worker = ends
    segment, vector = create(5, read_only=True)
    server.give(segment)
    server.send_multipart((b"it is there",))
    os.close(segment.fd)
    with pytest.raises(zmq.Again):
        worker.recv_multipart()
    assert received(worker) == [b"it is there"]
    vector[:] = np.arange(5)
    assert np.array_equal(worker.segments[segment.number], vector)


def test_an_end_that_does_not_read_does_not_block(ends):
    server, worker = ends
    with pytest.raises(zmq.Again):
        for _ in range(10_000):
            server.send_multipart((bytes(1000),))
    assert received(worker) == [bytes(1000)]


def test_a_message_that_is_too_long_ends_both_ends_and_is_not_lost_in_silence(ends):
    """Such as a push of a site with thousands of ranges: the worker repeats it over TCP."""
    for here, there in (ends, ends[::-1]):
        here.send_multipart((bytes(1 << 16),))
        assert received(there) == [bytes(1 << 16)]
    server, worker = ends
    spans = tuple((2 * at, 2 * at + 1) for at in range(SPANS))
    worker.send_multipart((m.encode(m.Update(Push(0, 0, 1, 1, SPANS, 0.1, spans=spans), 0, 1)),))
    with pytest.raises(OSError, match="a message has more than 65,536 bytes") as error:
        worker.recv_multipart()
    assert not isinstance(error.value, ConnectionError)  # it would be tried again
    with pytest.raises(ConnectionError):
        server.recv_multipart()


def test_a_message_of_another_process_that_is_cut_off_is_not_read(ends):
    for here, there in (ends, ends[::-1]):
        here._peer.send(bytes((1 << 16) + 7))
        with pytest.raises(OSError, match="a message has more than 65,536 bytes"):
            there.recv_multipart()


def test_a_segment_without_its_number_is_ignored(ends):
    server, worker = ends
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(server._peer, [b"no number"], [server.fileno()])
    with pytest.raises(OSError, match="a segment came without its number"):
        worker.recv_multipart()
    assert len(os.listdir("/proc/self/fd")) == before and not worker.segments


def test_messages_sent_before_the_end_are_read(ends):
    server, worker = ends
    server.send_multipart((b"last",))
    server.close()
    assert received(worker) == [b"last"]
    with pytest.raises(ConnectionError):
        worker.recv_multipart()
    worker.send_multipart((b"nobody reads this",))


def test_the_last_message_of_a_closed_end_is_read(ends):
    """The kernel reports the unread message as a reset before it hands over what was sent."""
    server, worker = ends
    worker.send_multipart([b"a push that nobody reads"])
    server.send_multipart([b"the last word"])
    server.close()
    assert received(worker) == [b"the last word"]
    with pytest.raises(ConnectionError, match="the other process has closed the connection"):
        received(worker)


def test_files_sent_by_a_worker_are_closed(ends):
    server, worker = ends
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        worker.give(Segment(7, worker.fileno()))
        server.recv_multipart()
    assert len(os.listdir("/proc/self/fd")) == before and not server.segments


@pytest.mark.parametrize("name", ["x", "wbsp-", "wbsp-" + 31 * "0", "wbsp-" + 33 * "0",
                                  "wbsp-" + 32 * "g", "/tmp/.X11-unix/X0",
                                  "wbsp-" + 31 * "0" + "\n"])
def test_a_name_that_no_worker_gives_is_refused(name):
    for good in ("", "wbsp-" + 32 * "0"):
        assert m.decode(m.FromWorker, m.encode(m.Join([], good))).socket == good
    for message in (m.Join([], name), m.Follow(m.PROTOCOL, {}, 1, socket=name)):
        with pytest.raises(WireError):
            m.decode(m.FromWorker, m.encode(message))


def test_connecting_to_a_name_without_a_worker_is_refused():
    with pytest.raises(ConnectionRefusedError):
        connect("wbsp-" + 32 * "0")


def as_nobody(code):
    """Start this code as another user; it runs until its standard input ends."""
    return subprocess.Popen([sys.executable, "-c", "import sys, os, socket\n"
                             "from wbsp.wire.shm.link import Door\n"
                             f"os.seteuid({NOBODY})\n{code}\nprint(flush=True)\nsys.stdin.read()"],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@needs_root
def test_a_server_shares_no_memory_with_another_users_worker():
    with as_nobody("door = Door(True); print(door.name, flush=True)") as other:
        with pytest.raises(PermissionError, match=f"user {NOBODY}"):
            connect(other.stdout.readline().strip())
        other.stdin.close()


@needs_root
def test_a_worker_shares_no_memory_with_another_users_server():
    door = Door(True)
    reach = f"s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect('\\0{door.name}')"
    with as_nobody(reach) as other:
        other.stdout.readline()
        assert door.accept() is None
        other.stdin.close()
    door.close()


def test_a_released_segment_is_unmapped_once_no_process_reads_it(ends):
    server, worker = ends
    given = []
    for _ in range(3):
        segment, _ = create(5, read_only=True)
        server.give(segment)
        os.close(segment.fd)
        given.append(segment.number)
    server.send_multipart((b"they are there",))
    assert worker.has(given[2])
    view = worker.segments[given[1]][1:]
    for number in given[:2]:
        server.send_multipart((gone(number),))
    assert received(worker) == [b"they are there"]
    for _ in range(2):
        with pytest.raises(zmq.Again):
            worker.recv_multipart()
    assert list(worker.segments) == given[1:], "one is read"
    assert (view == 0).all()
    del view
    worker.let_go()
    assert list(worker.segments) == given[2:]


def test_releasing_an_unknown_segment_changes_nothing(ends):
    server, worker = ends
    server.send_multipart((gone(77),))
    with pytest.raises(zmq.Again):
        worker.recv_multipart()
    assert worker.segments == {}
    worker.send_multipart((gone(77),))
    assert len(received(server)[0]) == 12, "a server is given no memory: it is a wrong message"
