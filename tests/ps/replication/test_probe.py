"""Whether a silent server's address refuses connections, and who is there instead."""

import threading

import pytest
from jobs import free_port, until

from wbsp.process.host import HOST, Host, Network
from wbsp.ps.replication.probe import Inquiry, Probe
from wbsp.wire.addresses import endpoint
from wbsp.wire.intake import Intake
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import answer
from wbsp.wire.sockets import ServerSocket

SECRET = bytes(32)


class Names(Network):
    """A name server that takes its time, and then knows no name or says 127.0.0.1."""

    def __init__(self, known=True):
        self.go, self.asked, self._known = threading.Event(), [], known

    def resolve(self, host, port):
        self.asked.append((host, threading.current_thread()))
        if host == "127.0.0.1":
            return super().resolve(host, port)
        assert self.go.wait(60)
        if not self._known:
            raise OSError("Name or service not known")
        return super().resolve("127.0.0.1", port)


@pytest.fixture
def silent():
    """Makes a probe of a port where no process listens; libzmq has seen that."""
    made = []

    def make(host, names):
        server, port = ServerSocket("localhost", 0, on=Host(network=names)), free_port()
        dealer = server.dealer("localhost")
        probe = Probe(dealer, host, port, Intake(server, dealer, lambda: False), server.on)
        made.extend([probe, dealer, server])
        dealer.connect(endpoint("localhost", port))
        until(lambda: probe.refused(HOST.clock.monotonic()) or probe._failed, "a failure")
        return probe
    yield make
    for one in made:
        one.close()


def test_the_loop_does_not_wait_for_a_name(silent):
    names = Names()
    probe = silent("server.example", names)
    for _ in range(5):  # would stand still here
        assert not probe.refused(HOST.clock.monotonic())
    until(lambda: names.asked, "a look-up")
    assert not probe.refused(HOST.clock.monotonic() + 100)
    [(_, thread)] = names.asked
    assert thread is not threading.main_thread() and thread.daemon, "it holds up no end"
    names.go.set()
    until(lambda: probe.refused(HOST.clock.monotonic()), "a refusal")
    until(lambda: probe.refused(HOST.clock.monotonic()), "another one")
    assert len(names.asked) > 1, "the name may stand for another machine by now"


def test_a_name_that_is_not_known_proves_nothing(silent):
    names = Names(known=False)
    names.go.set()
    probe = silent("server.example", names)
    until(lambda: names.asked and not probe.refused(HOST.clock.monotonic()) and not probe._lookup,
          "an answer")
    assert not probe.refused(HOST.clock.monotonic())


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_an_address_is_asked_about_at_once_and_is_the_one_that_libzmq_tries(silent, host):
    names = Names()
    probe = silent(host, names)
    until(lambda: probe.refused(HOST.clock.monotonic()), "a refusal")
    assert {host for host, _ in names.asked} == {"127.0.0.1"}


@pytest.fixture
def pair():
    """An inquiry by a server, and the process that is asked: without a token, and with one."""
    made = []

    def make(token=None):
        here, there = (ServerSocket("localhost", 0, one) for one in (None, token))
        inquiry = Inquiry(here, "localhost", there.port, "ab12", SECRET)
        made.extend([inquiry, here, there])
        return inquiry, there.socket
    yield make
    for one in made:
        one.close()


def test_why_an_inquiry_has_no_answer(pair):
    inquiry, there = pair(token=b"a token of the test, long enough")
    until(lambda: inquiry.refused(HOST.clock.monotonic()) or inquiry.why, "a reason")
    assert "its token is another one" in inquiry.why
    inquiry, there = pair()
    assert inquiry.epoch(HOST.clock.monotonic()) is None and inquiry.why is None
    assert there.poll(20_000)
    identity, _ = there.recv_multipart()
    there.send_multipart([identity, m.encode(m.NotServing("a shard\n"))])
    until(lambda: inquiry.epoch(0.0) or inquiry.why, "a reason")
    assert inquiry.why == "it says: a shard?"


def test_an_answer_counts_that_is_proven(pair):
    inquiry, there = pair()
    assert inquiry.epoch(HOST.clock.monotonic()) is None and there.poll(20_000)
    identity, ask = there.recv_multipart()
    nonce = m.decode(m.FromWorker, ask).nonce
    for key, epoch in ((bytes([1]) * 32, 9), (SECRET, 3)):
        there.send_multipart([identity, m.encode(m.Leading(
            epoch, proof=answer(key, nonce, "leading", epoch)))])
    assert until(lambda: inquiry.epoch(0.0), "the epoch") == 3
