"""Peers that request much and read nothing: the server's memory does not grow."""

import contextlib
import socket
import time
from threading import Thread

import psutil
import pytest
import zmq
from fake_worker import FakeWorker, all_end
from hostile_peer import Peer, RawPeer
from integer_replica import IntegerReplica
from jobs import free_port, until

from wbsp.wire.messages import codec as m

SECONDS = 3.0


def endless(port, end):
    """One message that never ends, again and again."""
    while time.monotonic() < end:
        with RawPeer(port) as peer:
            peer.socket.settimeout(SECONDS)
            try:
                while time.monotonic() < end:
                    peer.part(1 << 20)
            except OSError:
                pass


def refused(port, end):
    """Messages of a stranger, who reads none of the answers."""
    with RawPeer(port) as peer:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.socket.settimeout(SECONDS)
        data = m.encode(m.Goodbye())
        try:
            while time.monotonic() < end:
                peer.socket.sendall(1000 * (b"\0" + bytes([len(data)]) + data))
        except OSError:  # it was cut, or holds itself up
            pass


def member(port, end):
    """Fetches of a member, which reads no model."""
    context = zmq.Context()
    peer = context.socket(zmq.DEALER)
    peer.rcvhwm = peer.sndhwm = 1
    peer.connect(f"tcp://127.0.0.1:{port}")
    peer.send(m.encode(m.Hello(m.PROTOCOL, 1, {})))
    peer.recv_multipart()
    peer.send(m.encode(m.Join(IntegerReplica(1, m.CHUNK).layout)))
    number = 0
    while time.monotonic() < end:
        if peer.poll(100, zmq.POLLOUT):
            peer.send_multipart([m.encode(m.Fetch(number))])
            number += 1
    context.destroy(0)
    assert number > 1000


# Bytes that a server may grow by. On a busy machine it notices an endless message later, and more
# of the other worker's pushes and of a member's models lie in libzmq's queues.
@pytest.mark.parametrize("flood, most", [(endless, 60e6), (refused, 20e6), (member, 60e6)])
def test_memory_stays_flat_under_a_flood(jobs, flood, most):
    server = jobs.server("--connect_timeout=1", sync="pcc", workers=2).listens()
    worker = FakeWorker(server.address, 0, steps=100_000, seconds=0.02,
                        replica=IntegerReplica(0, m.CHUNK))
    until(lambda: server.events("commit"), "a version")  # memory that is allocated once is there
    process = psutil.Process(server.process.pid)
    before = peak = process.memory_info().rss
    end = time.monotonic() + SECONDS

    thread = Thread(target=flood, args=(int(server.address.rpartition(":")[2]), end))
    thread.start()
    while thread.is_alive():
        peak = max(peak, process.memory_info().rss)
        time.sleep(0.01)
    thread.join()
    assert peak - before < most, f"{(peak - before) / 1e6:.0f} MB"
    with Peer(server.address) as peer:  # perhaps cut, too, while much is still to be read
        until(lambda: peer.is_answered(m.Heartbeat(None), m.Unknown),
              "the server to answer a stranger")
    worker.leave()
    all_end([worker])
    server.ends_well()


def test_a_server_without_free_files_reports_it_and_continues_later(jobs):
    """At its start, and when it comes to that; it does not stand still in silence."""
    port = free_port()
    server = jobs.run("server", "bash", "-c", "ulimit -n 30 && exec python -m wbsp.ps "
                      f"--worker_num=8 --sync=asp --port_base={port}")
    server.until("can open 30 files, but 8 workers may need 176: if connections")
    server.until("listening on port")
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        server.until("the limit of open files is reached")
    with Peer(f"localhost:{port}") as peer:
        peer.joins(0)
    server.was_clean()
