"""Slow is not dead: timeouts of a server, counted from the last progress of a peer.

The limits are made short for these tests, in the server's own process.
"""

import time

import pytest
from conservation import IntegerRun, assert_conserved
from fake_worker import FakeWorker, all_end
from hostile_peer import Peer
from integer_replica import IntegerReplica
from jobs import ServerJob, free_port
from proxy import Proxy

from wbsp.ps.checkpoint import format as checkpoint
from wbsp.sync.base import Push
from wbsp.wire.errors import TransportError
from wbsp.wire.messages import codec as m

SIZE = 5  # floats in an integer worker's model
IMPATIENT = """
import runpy
import wbsp.timeouts
wbsp.timeouts.INITIAL_STALLED = {patience}
wbsp.timeouts.GOODBYE = {patience}
{fault}
runpy.run_module("wbsp.ps", run_name="__main__")
"""


def impatient(jobs, *flags, workers, patience=1.0, sync="asp", fault=""):
    """A server with timeouts of this number of seconds."""
    port = free_port()
    server = jobs.start("server", "-c", IMPATIENT.format(patience=patience, fault=fault),
                        f"--worker_num={workers}", f"--sync={sync}", f"--port_base={port}",
                        "--one_run", *flags, kind=ServerJob)
    server.address, server.cwd = f"localhost:{port}", jobs.folder
    return server.listens()


@pytest.mark.slow
def test_a_final_version_may_take_longer_than_the_patience(jobs):
    server = impatient(jobs, "--band_width_limit=1", workers=1, patience=6.0)
    replica = IntegerReplica(0, 8 * m.CHUNK)  # 8 s each way
    FakeWorker(server.address, 0, steps=0, replica=replica).ends()
    server.ends_well()
    assert not server.find("ending without")
    assert len(replica.adopted) == 2, "W_0 and the final version"


def test_a_worker_that_does_not_fetch_the_final_version_ends_nothing(jobs):
    server = impatient(jobs, workers=1)
    with Peer(server.address) as peer:
        assert peer.joins(0).send_initial
        peer.send(m.Initial(0, SIZE), bytes(4 * SIZE))
        peer.hears(m.Granted)
        peer.send(m.Leaving("done", True, None))
        peer.hears(m.Final)
        peer.waits_until_handled()
        server.ends_well()
    assert server.find("worker 0: no progress on the final version for 1 s; ending")


@pytest.mark.slow
def test_an_initial_model_may_take_longer_than_the_workers_wait_for_the_server(jobs):
    server = impatient(jobs, workers=2, patience=8.0)
    waiting = [FakeWorker(server.address, worker, steps=1, timeout=8.0, bandwidth=5e5,
                          replica=IntegerReplica(worker, 6 * m.CHUNK))  # 2 s a chunk
               for worker in range(2)]
    for worker in range(2):
        server.until(f"worker {worker} joined")
    assert [member.error for member in waiting] == [None, None]
    server.kill()


def test_a_worker_that_does_not_send_the_initial_model_is_refused(jobs):
    server = impatient(jobs, workers=2)
    with Peer(server.address) as silent:
        assert silent.joins(1).send_initial
        honest = FakeWorker(server.address, 0, steps=3)
        for _ in range(600):
            silent.send(m.Heartbeat(None))
            if isinstance(reply := silent.hears(m.Alive, m.Refused), m.Refused):
                break
            time.sleep(0.05)
        assert "asked for the initial model and sent nothing of it for" in reply.reason
        other = FakeWorker(server.address, 1, steps=3)
        all_end([honest, other])
    server.ends_well()


def test_a_worker_that_builds_its_model_learns_of_the_runs_end(jobs):
    server = jobs.server("--connect_timeout=1", sync="asp", workers=2).listens()
    with Peer(server.address) as builder:
        builder.send(m.Hello(m.PROTOCOL, 1, {}))
        builder.hears(m.Welcome)
        FakeWorker(server.address, 0, steps=3).ends()
        reason = builder.hears(m.Refused).reason
        assert reason == "worker 1 is too late: the run has ended (done)"
        server.ends_well()


@pytest.mark.parametrize("way", ["down", "up"])
def test_a_connection_that_breaks_on_a_limited_line(jobs, way):
    """Messages queued for the broken connection must not be read as part of the next."""
    size, limited = 6 * m.CHUNK, 8e6
    flags = [f"--band_width_limit={limited / 1e6:g}"] if way == "down" else []
    server = jobs.server(*flags, sync="asp", workers=1).listens()
    replica = IntegerReplica(0, size)
    cuts = [(way, int(mib * (1 << 20))) for mib in (2.5, 9.5)]
    with Proxy(int(server.address.rpartition(":")[2]), cuts) as proxy:
        member = FakeWorker(proxy.address, 0, steps=3, replica=replica, share=False,
                            bandwidth=limited if way == "up" else None)
        member.ends()
        assert proxy.connections == 3 and not proxy.cuts_left
    server.ends_well()
    assert any("connected again" in line for line in member.said)
    assert_conserved(IntegerRun.of_threads(server, [member]))


# One message of a member that is wrong costs that member alone.


def test_a_fault_in_handling_a_message_drops_only_its_sender(jobs):
    server = impatient(jobs, "--connect_timeout=1", workers=3, fault="""
import wbsp.sync.asp
push = wbsp.sync.asp.ASP.push
def faulty(self, update, now):
    if update.worker == 2:
        raise ZeroDivisionError("as a test wants it")
    return push(self, update, now)
wbsp.sync.asp.ASP.push = faulty
""")
    members = [FakeWorker(server.address, worker, steps=50, seconds=0.01) for worker in range(2)]
    unlucky = FakeWorker(server.address, 2, steps=5)
    with pytest.raises(TransportError, match="handling its message failed: ZeroDivisionError"):
        unlucky.ends()
    all_end(members)
    server.ends_well()
    assert server.find("worker 2 was lost")
    (event,) = server.events("error")
    assert "as a test wants it" in "".join(event["traceback"])
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    assert saved.state.version == 100


def test_a_process_that_joins_after_the_stop_cannot_push(jobs):
    server = jobs.server("--connect_timeout=1", sync="ssp", workers=2).listens()
    with Peer(server.address) as stayer, Peer(server.address) as late:
        assert stayer.joins(0).send_initial
        stayer.send(m.Initial(0, SIZE), bytes(4 * SIZE))
        stayer.hears(m.Granted)
        server.signal(15)
        stayer.hears(m.Stop)
        late.joins(1)
        late.hears(m.Stop)
        late.send(m.Update(Push(1, 0, 0, 1, 1, 0.1), 0, SIZE), bytes(4 * SIZE))
        assert "pushed without having been started" in late.hears(m.Refused).reason
        stayer.send(m.Leaving("done", True, None))
        stayer.hears(m.Final)
        stayer.send(m.Goodbye())
        assert server.ends() == 128 + 15
    server.was_clean()
    assert not server.events("accept")
    assert sum(event["count"] for event in server.events("malformed")) == 1


def test_a_missing_worker_is_named_with_the_time_that_is_left(jobs):
    soon = "import wbsp.runlog.awaited; wbsp.runlog.awaited._NOTICE = 0.1"
    server = impatient(jobs, workers=2, fault=soon)
    server.until(r"waiting for worker 0, 1 to connect, for 1\d\d s more; then this server ends")
    workers = [jobs.integer_worker(server.address, 0, seconds=0.05)]
    server.until(r"waiting for worker 1 to join, for 1\d\d s more; then training begins with the "
                 "others")
    workers.append(jobs.integer_worker(server.address, 1, seconds=0.05))
    server.until("worker 1 joined")
    for worker in workers:
        worker.kill()
    server.until(r"waiting for worker 0, 1 to reconnect, for 1\d\d s more; then this run ends")
