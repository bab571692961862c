"""Who counts as lost, when; and whether a silent server's address refuses connections."""

import threading

import pytest
from jobs import free_port, until

from wbsp.process.host import HOST, Host, Network
from wbsp.wire.liveness import STANDBY, WORKER, Beats, Liveness, Nap
from wbsp.wire.server_link import ServerLink
from wbsp.wire.sockets import ServerSocket


class Names(Network):
    """A slow name server, which then knows no name or answers 127.0.0.1."""

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
    """Makes a link to a port where no process listens; libzmq has seen that."""
    made = []

    def make(host, names):
        server = ServerSocket("localhost", 0, on=Host(network=names))
        link = ServerLink(server, "localhost", free_port())
        link._probe._host = "127.0.0.1" if host == "localhost" else host
        made.extend([link, server])
        until(lambda: link.refused(HOST.clock.monotonic()) or link._failed, "a failure")
        return link
    yield make
    for one in made:
        one.close()


def test_the_loop_does_not_wait_for_a_name(silent):
    names = Names()
    link = silent("server.example", names)
    for _ in range(5):  # would stand still here
        assert not link.refused(HOST.clock.monotonic())
    until(lambda: names.asked, "a look-up")
    assert not link.refused(HOST.clock.monotonic() + 100)
    [(_, thread)] = names.asked
    assert thread is not threading.main_thread() and thread.daemon, "it holds up no end"
    names.go.set()
    until(lambda: link.refused(HOST.clock.monotonic()), "a refusal")
    until(lambda: link.refused(HOST.clock.monotonic()), "another one")
    assert len(names.asked) > 1, "the name may stand for another machine by now"


def test_an_unknown_name_proves_nothing(silent):
    names = Names(known=False)
    names.go.set()
    link = silent("server.example", names)
    until(lambda: (names.asked and not link.refused(HOST.clock.monotonic())
                   and not link._probe._attempt), "an answer")
    assert not link.refused(HOST.clock.monotonic())


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_an_address_is_asked_about_at_once_and_is_the_one_that_libzmq_tries(silent, host):
    names = Names()
    link = silent(host, names)
    until(lambda: link.refused(HOST.clock.monotonic()), "a refusal")
    assert {host for host, _ in names.asked} == {"127.0.0.1"}


def test_a_loop_detects_that_it_was_suspended():
    nap = Nap(100.0)
    assert not nap.over(100.05) and not nap.over(101.0)
    assert nap.over(3701.0) and nap.seconds == 3600.0
    assert not nap.over(3701.05)


def test_a_disconnected_process_is_lost_and_a_slow_one_is_not():
    worker, tried = Liveness(WORKER, 0.0), []

    def reaches(found):
        return lambda: tried.append(found) or found
    assert worker.lost(1.0, reaches(False)) is None and not tried, "it has just been heard"
    assert worker.lost(1.5, reaches(False)) is None and worker.lost(2.0, reaches(False)) is None
    assert len(tried) == 1, "once a second"
    assert worker.lost(6.0, reaches(True)) is None, "it is back"
    assert worker.lost(7.5, reaches(False)) is None and worker.lost(12.4, reaches(False)) is None
    assert worker.lost(13.5, reaches(False)) == "no connection for 6 s"
    worker.hear(13.6)
    assert worker.lost(15.0, reaches(False)) is None, "it has said something"
    assert worker.lost(313.5, reaches(True)) is None
    assert worker.lost(313.7, reaches(True)) == "connected, but silent for 300 s"
    worker.woke(400.0)
    assert worker.lost(401.0, reaches(True)) is None, "it was this process that slept"


def test_a_standby_without_a_connection_is_lost_at_once():
    assert Liveness(STANDBY, 0.0).lost(1.1, lambda: False) == "no connection for 0 s"


def test_an_end_found_long_after_the_last_contact_proves_nothing():
    beats = Beats()
    assert not beats.fresh(0.0)
    beats.sent(1, 10.0)
    beats.answered(1)
    assert beats.fresh(13.9) and not beats.fresh(14.0)
    beats.doubt()
    assert not beats.fresh(10.0)
