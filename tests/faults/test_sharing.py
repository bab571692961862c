"""Memory that a server and workers of one machine share: an equal run, and no remains."""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import hosts
import numpy as np
import psutil
import pytest
import zmq
from conservation import IntegerRun, assert_conserved, steps_of
from fake_worker import FakeWorker, all_end
from hostile_peer import Peer
from integer_replica import IntegerReplica
from proxy import Proxy
from server_and_standby import ServerAndStandby

from wbsp.core.messages import Place
from wbsp.process.host import HOST
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.sync.base import Push
from wbsp.wire.messages import codec as m
from wbsp.wire.shm.link import Door
from wbsp.wire.shm.segments import PIECE

pytestmark = pytest.mark.skipif(not HOST.memory.available(),
                                reason="no shared memory on this system")
MANY = PIECE + 7  # floats: more than lie at one place


def check(server, members):
    """The run ended well, all hold its last version, and each push counted once."""
    server.ends_well()
    assert_conserved(IntegerRun.of_threads(server, members))


@pytest.mark.parametrize("sync, size", [("asp", 5), ("bsp", MANY), ("pcc", MANY), ("nbsync", 5)])
def test_every_push_counts_once_and_all_end_with_the_same_bytes(jobs, sync, size):
    server = jobs.server(sync=sync, workers=3).listens()
    members = [FakeWorker(server.address, worker, steps=6 + worker, seconds=0.002 * worker,
                          replica=IntegerReplica(worker, size)) for worker in range(3)]
    all_end(members)
    check(server, members)
    assert len(server.find("joined over shared memory")) == 3


def test_one_worker_by_shared_memory_and_one_by_tcp(jobs):
    server = jobs.server(sync="pcc").listens()
    members = [FakeWorker(server.address, worker, steps=8, replica=IntegerReplica(worker, MANY),
                          share=not worker) for worker in range(2)]
    all_end(members)
    check(server, members)
    server.until("worker 0 joined over shared memory")
    server.until("worker 1 joined over TCP .the worker shares no memory.")


@pytest.mark.parametrize("flags, variables, plan, reason", [
    (["--transport=tcp"], {}, {}, "shared memory disabled by --transport=tcp"),
    ([], {"WBSP_TRANSPORT": "tcp"}, {}, "shared memory disabled by --transport=tcp"),
    (["--band_width_limit=100"], {}, {}, "a rate limit"),
    (["--shards=2"], {}, {}, "shards"),
    ([], {}, {"bandwidth": 1e8}, "the worker shares no memory"),
])
def test_tcp_is_used_where_shared_memory_is_disabled(jobs, flags, variables, plan, reason):
    server = jobs.server(*flags, workers=1, sync="asp", **variables).listens()
    FakeWorker(server.address, 0, steps=3, **plan).ends()
    server.ends_well()
    server.until(f"worker 0 joined over TCP .{reason}.")


def test_another_user_is_served_over_tcp(jobs):
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    server = jobs.server(workers=1, sync="asp").listens()
    helpers = Path(__file__).parents[1] / "helpers"
    subprocess.run([sys.executable, "-c", "import os, sys\n"
                    f"sys.path.append({str(helpers)!r})\n"
                    "from fake_worker import IntegerReplica, FakeWorker\n"
                    "replica = IntegerReplica(0)\n"  # all that is needed is imported
                    "os.seteuid(65534)\n"
                    f"FakeWorker({server.address!r}, 0, steps=4, replica=replica).ends()"],
                   check=True, timeout=60)
    server.ends_well()
    server.until("worker 0 joined over TCP .the process at the other end runs as user 65534.")


@pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))
def test_a_worker_in_another_network_namespace_is_served_over_tcp(jobs):
    with hosts.Hosts("server", "standby", "w0", "w1") as network:
        pair = ServerAndStandby(jobs, hosts=network, standby=False, flags=())
        for _ in range(2):
            pair.worker(5)
        pair.ends(pair.server)
    assert len(pair.server.find("joined over TCP .Connection refused.")) == 2


def open_files(job):
    """The numbers of files and of mapped segments of a process."""
    process = psutil.Process(job.process.pid)
    return process.num_fds(), sum("memfd" in one.path for one in process.memory_maps(grouped=False))


def left_behind(jobs):
    """Names in the folders in which shared memory could leave some."""
    return {(place, name) for place in ("/dev/shm", "/tmp", jobs.folder)
            for name in os.listdir(place) if "wbsp" in name and not name.startswith("wbsp-check")}


def test_killed_workers_leave_no_shared_memory(jobs):
    """Not in the server either: each process of a worker needs as much as the one before."""
    before = left_behind(jobs)
    server = jobs.server(workers=2, sync="asp").listens()
    size, found = 100_000, []
    stays = jobs.integer_worker(server.address, 0, size=size, seconds=0.005, stop_when_told=True)
    for _ in range(6):
        worker = jobs.integer_worker(server.address, 1, size=size, seconds=0.005)
        worker.until("step 5 done")
        found.append(open_files(server))
        worker.kill()
    files, segments = zip(*found, strict=True)
    # a busy moment may take the memory of one more version, which stays, and has two files
    assert max(files) <= min(files) + 2 and max(segments) <= min(segments) + 1
    (jobs.folder / "go").touch()
    stays.ends_well()
    server.ends_well()
    assert len(server.find("worker 1 joined over shared memory")) == 6
    assert left_behind(jobs) == before


def test_workers_share_memory_with_the_resumed_server(jobs):
    """No cut is lost or counted twice, and no worker keeps memory of the first server."""
    before = left_behind(jobs)
    pair = ServerAndStandby(jobs, sync="pcc", standby=False)
    pair.trains()
    pair.kill("server")
    pair.server.until("worker 0 reconnected with version .* over shared memory")
    pair.server.until("worker 1 reconnected with version .* over shared memory")
    for worker in pair.workers:
        here = [one.path for one in psutil.Process(worker.process.pid).memory_maps(grouped=False)]
        assert 1 <= sum("memfd:wbsp" in path for path in here) <= 10
    pair.go()
    pair.ends(pair.server)
    assert left_behind(jobs) == before


def test_a_standby_that_takes_over_shares_its_own_memory(jobs):
    pair = ServerAndStandby(jobs, sync="wbsp")
    pair.trains()
    pair.server.kill()
    pair.standby.until("worker 0 reconnected with version .* over shared memory")
    pair.go()
    pair.ends(pair.standby)


def test_a_worker_that_cannot_open_more_files_continues_over_tcp(jobs):
    """The first version does not arrive: the worker reattaches, and receives it over TCP."""
    server = jobs.server(workers=1, sync="asp").listens()
    code = f"""
import os, resource, sys
sys.path.append({str(Path(__file__).parents[1] / "helpers")!r})
from fake_worker import FakeWorker
from integer_replica import IntegerReplica
class Tight(IntegerReplica):
    opened = []
    def adopt(self, vector, how):
        super().adopt(vector, how)
        if not self.opened:
            self.opened += [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(self.opened) + 1, hard))
member = FakeWorker({server.address!r}, 0, steps=20, replica=Tight(0, {MANY}))
member.ends()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    server.ends_well()
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    assert steps_of(saved.state) == {0: 20}
    assert len(server.events("accept")) == 20 and server.events("reattach") == []


def test_memory_that_did_not_arrive_is_shared_from_the_next_connection_on(jobs, monkeypatch):
    """Until then the worker uses TCP; it asks once for each connection."""
    opened, tries = Door.link, []

    def fails_at_first(door, number):
        tries.append(number)
        return opened(door, number) if len(tries) > 1 else None
    monkeypatch.setattr(Door, "link", fails_at_first)
    server = jobs.server(workers=1, sync="asp").listens()
    with Proxy(int(server.address.rpartition(":")[2])) as proxy:
        over_tcp = []

        def after_step(step):
            if member.plane.memory:
                member.leave()
            elif server.events("accept"):  # it is served, and not over memory
                over_tcp.append(step)
                if len(over_tcp) == 1:
                    proxy.cut()
        member = FakeWorker(proxy.address, 0, steps=1000, seconds=0.005, after_step=after_step)
        member.ends()
    server.ends_well()
    said = [line for line in member.said if "shared memory is not available" in line]
    assert len(said) == 1 and "continuing over TCP" in said[0]
    assert over_tcp and len(tries) == 2
    assert len(server.events("accept")) == len(member.replica.cuts)


# An incorrect worker.


class Neighbour(Peer):
    """A peer on the server's machine, of its user, with the memory shared with it."""

    def joins(self, worker):
        door = Door(True)
        self.send(m.Hello(m.PROTOCOL, worker, {}))
        self.hears(m.Welcome)
        self.send(m.Join(IntegerReplica(worker).layout, door.name))
        joined = self.hears(m.Joined)
        if joined.send_initial:
            self.send(m.Initial(0, 5), bytes(20))
            joined = self.hears(m.Joined)
        self.link, self.segment = door.accept(), joined.memory
        door.close()
        self.next(m.Granted)
        return joined

    def next(self, kind):
        """Wait for a message of that kind over the socket; others are skipped."""
        poller = zmq.Poller()
        poller.register(self.link.fileno(), zmq.POLLIN)
        while True:
            assert poller.poll(30_000), f"the server sent no {kind}"
            with contextlib.suppress(zmq.Again):
                message = m.decode(m.FromServer, self.link.recv_multipart()[0].buffer)
                if isinstance(message, kind):
                    return message

    def says(self, message):
        data = m.encode(message) if isinstance(message, m.Message) else message
        self.link.send_multipart((data,))

    @property
    def inbox(self):
        """The memory from which the server reads this peer's pushes: float32 [5]."""
        return self.link.segments[self.segment]


def push(segment, offset=0, nbytes=20, at=0, seq=0):
    """A push of five floats at this place, from float `at` on."""
    return m.Update(Push(0, seq, 0, 1, 1, 0.1), at, 5, seq + 1, returned=seq + 1,
                    place=Place(segment, offset, nbytes))


def test_a_place_outside_of_shared_memory_counts_as_a_malformed_message(jobs):
    """The server reads nothing beyond what it shares, and the next push counts as if nothing were.
    """
    server = jobs.server(workers=1, sync="asp").listens()
    with Neighbour(server.address) as peer:
        peer.joins(0)
        inside = peer.segment
        wrong = [push(inside + 1), push(0), push(1 << 62), push(inside, offset=4),
                 push(inside, offset=20), push(inside, nbytes=0), push(inside, nbytes=16),
                 push(inside, nbytes=19), push(inside, nbytes=24),
                 push(inside, nbytes=16, at=1), push(inside, offset=1, nbytes=19),
                 push(inside, at=4), m.Initial(0, 5), m.Hello(m.PROTOCOL, 0, {}), m.Ask("x")]
        for one in wrong:
            peer.says(one)
        peer.inbox[:] = 12.0
        peer.says(push(inside))
        ack = peer.next(m.Ack)
        assert ack.accepted and ack.model.version == 1
        place = ack.model.place
        there = peer.link.segments[place.segment]
        assert there.tolist() == 5 * [12.0] and not there.flags.writeable
        peer.inbox[:] = np.nan  # too late: the server has its own copy
        peer.says(push(inside, seq=1))
        ack = peer.next(m.Ack)
        assert not ack.accepted and "not finite" in ack.reason
        peer.says(m.Leaving("finished", True, None))
        peer.next(m.Final)
        peer.says(m.Goodbye())
        server.ends_well()
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    assert saved.vector.tolist() == 5 * [12.0]
    assert sum(event["count"] for event in server.events("malformed")) == len(wrong)


def test_a_member_whose_shared_message_does_not_decode_learns_the_reason(jobs):
    """One of these is a place that no message can name; the worker may rejoin."""
    server = jobs.server(workers=1, sync="asp").listens()
    undecoded = [push(-1), push(1, offset=-4), push(1, offset=1 << 62), push(1, nbytes=-4),
                 push(1, nbytes=1 << 62), push(1, at=-1), m.Alive(), b"x", os.urandom(300),
                 bytes(60_000)]
    for wrong in undecoded:
        with Neighbour(server.address) as peer:
            peer.joins(0)
            peer.says(wrong)
            reason = peer.next(m.Refused).reason
            assert reason.startswith(
                "worker 0 was given up: worker 0 sent what no message of a worker is"), reason
    with Neighbour(server.address) as peer:
        peer.joins(0)
        peer.inbox[:] = 12.0
        peer.says(push(peer.segment))
        assert peer.next(m.Ack).model.version == 1
        peer.says(m.Leaving("finished", True, None))
        peer.next(m.Final)
        peer.says(m.Goodbye())
        server.ends_well()
    assert sum(event["count"] for event in server.events("malformed")) == len(undecoded)


def test_a_worker_that_writes_during_the_read_cannot_make_a_version_of_nan(jobs):
    """It writes NaN and numbers in turn, without end: the server decides on its own copy."""
    server = jobs.server(workers=1, sync="asp").listens()
    with Neighbour(server.address) as peer:
        peer.joins(0)
        inbox, over = peer.inbox, threading.Event()

        def scribble():
            while not over.is_set():
                inbox[:] = np.nan
                inbox[:] = 1.0
        writer = threading.Thread(target=scribble, daemon=True)
        writer.start()
        answers = []
        for seq in range(300):
            peer.says(push(peer.segment, seq=seq))
            answers.append(peer.next(m.Ack))
        over.set()
        writer.join()
        accepted = sum(answer.accepted for answer in answers)
        for ack in answers:
            assert ack.accepted or "not finite" in ack.reason
        peer.says(m.Leaving("finished", True, None))
        peer.next(m.Final)
        peer.says(m.Goodbye())
        server.ends_well()
    assert accepted
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    assert saved.vector.tolist() == 5 * [float(accepted)]


def test_a_worker_that_never_fetches_again_holds_no_more_than_a_few_versions(jobs):
    """It asks for the same one over and over: then nothing is shared with it, and it may attach
    again."""
    server = jobs.server(workers=1, sync="asp").listens()
    with Neighbour(server.address) as peer:
        peer.joins(0)
        for _ in range(5):
            peer.says(m.Fetch(7))
        for _ in range(4):
            assert peer.next(m.Model).place is not None
        with pytest.raises(ConnectionError):
            peer.next(m.Model)
        peer.send(m.Goodbye())
        server.until("worker 0 was lost: it left in mid-run")
