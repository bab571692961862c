"""A process that is forked from a worker's is an ordinary process."""

import os
import signal
import socket
import time

import pytest
from fake_worker import FakeWorker
from jobs import until

from wbsp.process import forks
from wbsp.worker.signals import Signals

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def forked(act):
    """The process id of a child that does `act` and ends with the code that it returns."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        code = act()
    finally:
        os._exit(code)


def code_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def holding():
    """Signals are held back in this process, and its children know that they are children."""
    saved = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signals = Signals(lambda reason: None)
    signals.hold(lambda: True)
    forks.in_child(signals.forked)
    yield signals
    forks.forget(signals.forked)
    signals.release()
    for signum, handler in saved.items():
        signal.signal(signum, handler)


def test_a_child_that_is_ended_at_once_ends(holding):
    for _ in range(40):
        child = forked(lambda: time.sleep(60) or 0)
        os.kill(child, signal.SIGTERM)
        assert code_of(child) == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == holding._handle, "the worker's own stay"
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_child_has_pythons_own_handlers_and_blocks_none(holding):
    def usual():
        return int(not (signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
                        and signal.getsignal(signal.SIGINT) == signal.default_int_handler
                        and not signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    assert code_of(forked(usual)) == 0


def test_a_childs_own_child_is_ordinary_too(holding):
    def grandchild():
        child = forked(lambda: time.sleep(60) or 0)
        os.kill(child, signal.SIGTERM)
        return int(code_of(child) != -signal.SIGTERM)
    assert code_of(forked(grandchild)) == 0


def test_a_child_without_held_signals_blocks_none(monkeypatch):
    monkeypatch.setattr(forks, "_acts", [])  # a worker of an earlier test leaves one
    blocked = code_of(forked(lambda: len(signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
    assert blocked == 0


def connections(port):
    """How many connections to the port, and sockets of shared memory, this process has."""
    found = 0
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            one = socket.socket(fileno=fd)
        except OSError:
            continue
        try:
            peer = one.getpeername()
            found += isinstance(peer, tuple) and peer[1] == port
        except OSError:
            pass
        finally:
            one.detach()
    return found


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads /proc")
@pytest.mark.parametrize("share", [True, False])
def test_a_child_holds_none_of_the_workers_connections_and_the_worker_continues(jobs, share):
    server = jobs.server(workers=1).listens()
    port = int(server.address.rpartition(":")[2])
    member = FakeWorker(server.address, 0, 100_000, seconds=0.002, share=share)
    until(lambda: member.agent and member.agent.seq > 5, "some pushes")
    transport = member.runtime.transport
    forks.in_child(transport.forked)
    try:
        assert connections(port) == 1

        def child():
            transport.wake(), transport.leave("of a child", finished=False)
            listens = transport._connection._door._listener
            return connections(port) + (listens is not None) + (transport.error is None)
        assert code_of(forked(child)) == 0
    finally:
        forks.forget(transport.forked)
    assert connections(port) == 1
    seq = member.agent.seq
    until(lambda: member.agent.seq > seq + 5, "more pushes")
    member.leave()
    member.ends()
    server.ends_well()
