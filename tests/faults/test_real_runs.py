"""Workers and a server over real sockets: each push once, the same bytes for all, no needless wait.

The model is made of whole numbers, so that the server's model is known exactly. The server
is a process of its own, the workers are threads here.
"""

import threading
import time

import numpy as np
import pytest
import zmq
from conservation import IntegerRun, assert_conserved, steps_of
from fake_worker import FakeWorker, all_end
from integer_replica import IntegerReplica, pattern
from jobs import free_port, until
from proxy import Proxy

from wbsp.access import Access
from wbsp.sync import BSP
from wbsp.tensors.layout import LayerState, TensorSpec
from wbsp.wire.errors import TransportError
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.codec import CHUNK
from wbsp.worker.comm.transport import Transport
from wbsp.worker.runtime import WorkerRuntime

SYNCS = ["bsp", "asp", "ssp", "wbsp", "pcc"]


def check(server, members):
    """The run ended well, all hold its final version, and no push was lost or doubled."""
    server.ends_well()
    saved = assert_conserved(IntegerRun.of_threads(server, members))
    for member in members:
        assert member.agent.version == saved.state.version
    return saved


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("sync", SYNCS)
def test_every_push_counts_once_and_all_end_with_the_same_bytes(jobs, sync, workers):
    server = jobs.server(sync=sync, workers=workers).listens()
    members = [FakeWorker(server.address, worker, steps=15 + worker, seconds=0.002 * worker)
               for worker in range(workers)]
    all_end(members)
    saved = check(server, members)
    assert steps_of(saved.state) == {w: 15 + w for w in range(workers)}
    assert saved.state.version > 1
    held = {}  # all that adopted the same version hold the same bytes: as many bytes as versions
    for member in members:
        for how, vector in member.replica.adopted:
            held.setdefault(vector, set()).add(how)
    assert len(held) <= saved.state.version + 1


@pytest.mark.parametrize("sync", ["wbsp", "pcc"])
def test_a_model_of_many_chunks_arrives_whole(jobs, sync):
    size = 2 * CHUNK + 7
    server = jobs.server(sync=sync).listens()
    members = [FakeWorker(server.address, worker, steps=4, replica=IntegerReplica(worker, size))
               for worker in range(2)]
    all_end(members)
    check(server, members)


class Descent(IntegerReplica):
    """Gradient descent towards its own point: each step depends on the model."""

    def __init__(self, worker):
        super().__init__(worker)
        self._target = pattern(5) * (worker + 0.3)

    def step(self):
        self.x = self.x - np.float32(0.1) * (self.x - self._target)


def test_bsp_is_gradient_descent_on_all_batches_bit_for_bit(jobs):
    server = jobs.server(sync="bsp").listens()
    members = [FakeWorker(server.address, worker, steps=20, replica=Descent(worker))
               for worker in range(2)]
    all_end(members)
    server.ends_well()
    alone = [Descent(worker) for worker in range(2)]
    model = np.frombuffer(members[0].replica.adopted[0][1], np.float32)
    for _ in range(20):
        for replica in alone:
            replica.x = replica.anchor = model
            replica.step()
        model = model + sum(np.float32(0.5) * replica.cut() for replica in alone)
    assert members[0].replica.x.tobytes() == members[1].replica.x.tobytes() == model.tobytes()


def test_optimized_wbsp_never_waits(jobs):
    """Steps of 20 ms, next to a worker of 100 ms: nearly all time is compute."""
    server = jobs.server(sync="pcc").listens()
    reports = []
    fast = FakeWorker(server.address, 0, steps=60, seconds=0.02,
                      after_step=lambda step: reports.append(fast.runtime.report()))
    slow = FakeWorker(server.address, 1, steps=15, seconds=0.1)
    all_end([fast, slow])
    check(server, [fast, slow])
    booked = {kind: reports[-1].seconds[kind] - reports[0].seconds[kind]
              for kind in reports[0].seconds}
    assert booked["compute"] >= 59 * 0.02
    assert booked["compute"] / sum(booked.values()) > 0.8
    assert booked["wait"] < 0.1 * booked["compute"]
    assert reports[-1].pulls > 1, "nothing was fetched in all this time"


def test_bsp_books_the_wait_for_the_slow_worker(jobs):
    server = jobs.server(sync="bsp").listens()
    fast = FakeWorker(server.address, 0, steps=10)
    slow = FakeWorker(server.address, 1, steps=10, seconds=0.05)
    all_end([fast, slow])
    check(server, [fast, slow])
    assert fast.runtime.report().seconds["wait"] > 0.3


def test_a_bandwidth_limit_holds_in_each_direction(jobs):
    size, rate, steps = CHUNK + 1, 2e6, 3
    server = jobs.server(sync="asp", workers=1).listens()
    start = time.monotonic()
    member = FakeWorker(server.address, 0, steps, replica=IntegerReplica(0, size), bandwidth=rate)
    member.ends()
    check(server, [member])
    chunk = 4 * CHUNK  # what may pass unpaid at the end
    sent = 4 * size * (1 + steps)  # W_0 and the pushes
    received = 4 * size * (1 + steps)  # the pulls, W_0's included
    # under asp a worker does nothing else while it sends, and nothing else while it receives
    assert time.monotonic() - start >= (sent + received - 2 * chunk) / rate


@pytest.mark.parametrize("cuts", [
    [("up", 6_000_000)], [("down", 4_000_000)], [("up", 4_500_000), ("down", 6_000_000)]],
    ids=["in a push", "in a pull", "in both"])
def test_a_lost_connection_costs_nothing(jobs, cuts):
    """W_0 takes 2.4 MB up, and so do each push and each pull, of which there are two at least."""
    size = 600_000
    server = jobs.server(sync="wbsp").listens()
    port = int(server.address.rpartition(":")[2])
    with Proxy(port, cuts) as proxy:
        near = FakeWorker(server.address, 0, steps=6, replica=IntegerReplica(0, size))
        far = FakeWorker(proxy.address, 1, steps=6, share=False, replica=IntegerReplica(1, size))
        all_end([near, far])
        assert proxy.cuts_left == 0 and proxy.connections == 1 + len(cuts)
    assert [text for text in far.said if "connected again" in text]
    check(server, [near, far])


@pytest.mark.parametrize("way, kind", [
    ("up", b"Hello"), ("down", b"Welcome"), ("up", b"Join"), ("down", b"Joined"),
    ("up", b"Initial"), ("down", b"Granted"), ("up", b"Fetch"), ("down", b"Model"),
    ("up", b"Update"), ("down", b"Ack"), ("up", b"Leaving"), ("down", b"Final"),
    ("up", b"Goodbye")],
    ids=lambda x: x.decode() if isinstance(x, bytes) else x)
def test_any_message_may_be_lost_with_its_connection(jobs, way, kind):
    server = jobs.server("--connect_timeout=30", sync="wbsp", workers=2).listens()
    port = int(server.address.rpartition(":")[2])
    with Proxy(port, [(way, kind)]) as proxy:
        far = FakeWorker(proxy.address, 0, steps=6, share=False)
        if kind in (b"Initial", b"Joined"):
            while proxy.cuts_left and not far.error:  # the first to join is the one to bring W_0
                time.sleep(0.01)
        near = FakeWorker(server.address, 1, steps=6)
        for member in (far, near):
            member.ends(40)
        until(lambda: not proxy.cuts_left, f"a {kind.decode()}")  # it may pass as the member ends
    check(server, [far, near])


def test_a_push_whose_acknowledgement_was_lost_is_not_counted_twice(jobs):
    server = jobs.server(sync="asp", workers=1).listens()
    port = int(server.address.rpartition(":")[2])
    with Proxy(port, 3 * [("down", b"Ack")]) as proxy:
        member = FakeWorker(proxy.address, 0, steps=6, share=False)
        member.ends()
        assert not proxy.cuts_left
    check(server, [member])
    assert len(server.events("duplicate")) == 3


def test_a_worker_that_was_given_up_and_returns_continues(jobs):
    server = jobs.server(sync="asp").listens()
    port = int(server.address.rpartition(":")[2])
    with Proxy(port) as proxy:
        away = FakeWorker(proxy.address, 1, steps=30, seconds=0.01, share=False,
                          after_step=lambda step: step == 5 and (proxy.closed.set(), proxy.cut()))
        here = FakeWorker(server.address, 0, steps=10_000, seconds=0.01)
        server.until("worker 1 was lost")
        proxy.closed.clear()
        away_is_back = server.until("worker 1 reconnected with version")
        until(lambda: server.find("worker 1 left: finished"), "it to finish")
        here.leave()
        all_end([here, away])
    assert away_is_back and len(away.replica.cuts) == 30
    check(server, [here, away])


def test_a_grant_to_a_worker_that_is_cut_off_reaches_it_later(jobs):
    """Worker 0 waits for its round while no connection works, and the round ends meanwhile."""
    server = jobs.server(sync="bsp").listens()
    port = int(server.address.rpartition(":")[2])
    gate = threading.Event()
    with Proxy(port) as proxy:
        cut_off = FakeWorker(proxy.address, 0, steps=8, share=False)
        slow = FakeWorker(server.address, 1, steps=8,
                          after_step=lambda step: step != 3 or gate.wait(60))
        until(lambda: cut_off.agent and cut_off.agent.seq == 4
              and cut_off.agent.idle, "worker 0 to wait for the round's end")
        proxy.closed.set()
        proxy.cut()
        time.sleep(0.2)  # for the server to notice
        gate.set()
        until(lambda: slow.agent.version == 4, "worker 1 to continue")
        proxy.closed.clear()
        for member in (cut_off, slow):
            member.ends(40)
    check(server, [cut_off, slow])


def test_a_second_worker_of_the_same_index_is_refused(jobs):
    server = jobs.server(sync="asp", workers=1).listens()
    refused = []

    def try_again(step):
        if step == 3:
            refused.append(_refusal(server.address, 0))

    first = FakeWorker(server.address, 0, steps=6, after_step=try_again)
    first.ends()
    check(server, [first])
    assert "worker 0 is already connected" in refused[0] and "worker_index" in refused[0]
    assert len(server.find("refused: worker 0 is already connected")) == 1


def _refusal(address, worker, **kwargs):
    """The one line with which the server refuses this worker."""
    with pytest.raises(TransportError) as caught:
        FakeWorker(address, worker, steps=1, **kwargs).ends(60)
    text = str(caught.value)
    assert text.startswith("the server refused: ") and "\n" not in text
    return text


def test_a_worker_that_does_not_fit_is_refused_on_both_sides(jobs):
    server = jobs.server(sync="asp", workers=2).listens()
    settled, go_on = threading.Event(), threading.Event()

    def hold(step):
        if step == 2:
            settled.set()
            assert go_on.wait(60)

    first = FakeWorker(server.address, 0, steps=4, after_step=hold)
    server.until("worker 0 joined")
    other_shape = _refusal(server.address, 1, replica=IntegerReplica(1, size=6))
    assert "worker 1 has another model than the server: variable 0 is kernel[5] here and "\
           "kernel[4] there" in other_shape
    no_index = _refusal(server.address, 2)
    assert "worker 2 does not exist" in no_index and "0 to 1" in no_index
    assert "worker -1 does not exist" in _refusal(server.address, -1, replica=IntegerReplica(0))
    expected = _refusal(server.address, 1, expected={"sync": "bsp", "unknown to the server": "x"})
    assert "sync is 'bsp' on the worker and 'asp' on the server" in expected
    second = FakeWorker(server.address, 1, steps=4, expected={"sync": "asp"})
    assert settled.wait(60)
    go_on.set()
    all_end([first, second])
    check(server, [first, second])
    for reason in (other_shape, no_index, expected):
        assert reason.removeprefix("the server refused: ") in server.text
    assert len(server.events("refused")) == 4


def test_a_worker_with_other_layer_values_is_refused_after_a_restart_too(jobs):
    mine, other = ([LayerState("layer words", digest, (0.0, 0.0, 0.0))] for digest in ("aa", "bb"))
    flags, port = ["--base_dir=run", "--check_period=0.2"], free_port()
    server = jobs.server(*flags, sync="asp", workers=3, port=port).listens()
    go_on = threading.Event()
    first = FakeWorker(server.address, 0, steps=2, layers=mine,
                       after_step=lambda step: step < 1 or go_on.wait(60))
    server.until("worker 0 joined")
    told = _refusal(server.address, 1, layers=other)
    assert "worker 1 has another model than the others: layer words has other values " in told
    server.until("worker 1 has another model than the others")
    server.kill()
    again = jobs.server(*flags, "--resume", sync="asp", workers=3, port=port).listens()
    again.until("worker 0 reconnected")
    assert "layer words has other" in _refusal(again.address, 1, layers=other)
    members = [FakeWorker(again.address, 1, steps=1, layers=mine),
               FakeWorker(again.address, 2, steps=1)]  # of a framework whose layers are not known
    go_on.set()
    all_end([first, *members])
    again.ends_well()


def test_the_server_starts_with_the_workers_that_joined(jobs):
    server = jobs.server("--connect_timeout=2", sync="bsp", workers=3).listens()
    members = [FakeWorker(server.address, worker, steps=5) for worker in range(2)]
    all_end(members)
    check(server, members)
    assert server.find(r"starting with 2 of 3 workers: no other joined within 2 s")


def test_a_server_without_workers_ends_with_one_line(jobs):
    server = jobs.server("--connect_timeout=0.5")
    assert server.ends() == 1
    server.was_clean()
    assert len(server.find("no worker connected within 0.5 s")) == 1


def test_a_worker_without_a_server_ends_with_one_line(jobs):
    member = FakeWorker(f"localhost:{free_port()}", 0, steps=1, timeout=0.5)
    with pytest.raises(TransportError, match=r"no server answered at localhost:\d+ within 0.5 s"):
        member.ends()


def test_a_worker_gives_up_on_a_server_that_only_welcomes():
    """For example a server whose own model is not built within the worker's patience."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    member = FakeWorker(f"localhost:{port}", 0, steps=1, timeout=1.0)
    try:
        identity, _ = router.recv_multipart()
        router.send_multipart([identity, m.encode(m.Welcome(m.RunSettings(), 0.0, BSP.rule))])
        with pytest.raises(TransportError, match="sent no Joined within 1 s"):
            member.ends(30)
    finally:
        context.destroy(0)


def test_an_interrupt_ends_the_wait_for_others(jobs):
    server = jobs.server(sync="bsp", workers=2).listens()
    interrupted = threading.Event()
    transport, replica = Transport(Access(server.address), 0), IntegerReplica(0)
    welcome = transport.hello({}, 60)
    joined = transport.join(replica.layout, replica.read, 60)
    runtime = WorkerRuntime(transport, replica, welcome.rule, joined, None, lambda text: None,
                            interrupted.is_set)
    interrupted.set()
    runtime.start()  # worker 1 never comes
    runtime.finish("interrupted")
    transport.close()
    server.until("worker 0 left: interrupted")


def test_layouts_agree_by_names_without_numbers_of_the_process(jobs):
    server = jobs.server(sync="asp").listens()
    renamed, other = IntegerReplica(1), IntegerReplica(1)
    renamed.layout = [TensorSpec("kernel_1", (4,)), TensorSpec("bias_1", ())]
    other.layout = [TensorSpec("scale", (4,)), TensorSpec("bias", ())]
    first = FakeWorker(server.address, 0, steps=3)
    server.until("worker 0 joined")
    assert "variable 0 is scale[4] here and kernel[4] there" in _refusal(
        server.address, 1, replica=other)
    members = [first, FakeWorker(server.address, 1, 3, replica=renamed)]
    all_end(members)
    check(server, members)
