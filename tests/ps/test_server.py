"""A server under attack: no message to its port changes the run of its workers."""

import contextlib
import functools
import json
import os
import random
import socket

import numpy as np
import pytest
from conservation import IntegerRun, assert_conserved
from fake_worker import FakeWorker, all_end
from hostile_peer import Peer
from integer_replica import IntegerReplica
from jobs import free_port, until

from wbsp.core.stats import Report
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.runlog.folder import SECRET, read_settings
from wbsp.sync.base import Push
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.assembly import split
from wbsp.wire.errors import TransportError
from wbsp.wire.messages import codec as m

SIZE = 5  # floats in the model
BODY = bytes(4 * SIZE)
TOKEN = b"0123456789abcdef0123456789abcdef"


def raw_tcp(address: str, data: bytes) -> None:
    """Send bytes that are no ZMTP, or only its beginning."""
    with contextlib.suppress(OSError), socket.create_connection(
            ("127.0.0.1", int(address.rpartition(":")[2])), 10) as peer:
        peer.sendall(data)


UPDATE = m.Update(Push(0, 0, 0, 1, 1, 0.1), 0, SIZE)
FROM_STRANGERS = [  # each is refused or not understood, without the sender being anybody
    (b"",), (b"\x00",), (os.urandom(40),), (b"\x92\xa4Join\xdd\xff\xff\xff\xff",),
    (m.encode(m.Alive()),), (b"a", b"b", b"c"), (m.Goodbye(), BODY),
    (m.Hello(m.PROTOCOL, 7, {}),), (m.Hello(m.PROTOCOL, -1, {}),),
    (m.Hello(m.PROTOCOL, 2**63, {}),), (m.Hello(m.PROTOCOL + 1, 0, {}),),
    (m.Hello(m.PROTOCOL, 0, {}),), (m.Hello(m.PROTOCOL, 2, {"sync": "x" * 100_000}),),
    (m.Hello(m.PROTOCOL, 2, {"sync": "two\nlines"}),),
    (m.Join([TensorSpec("x", (SIZE,))]),), (UPDATE, BODY), (UPDATE,), (m.Fetch(1),),
    (m.Initial(0, SIZE), BODY), (m.Heartbeat(None),), (m.Leaving("bye", True, None),),
    (m.Goodbye(),),
]
OVERSIZED = (UPDATE, bytes(m.MAX_MESSAGE + 1))  # libzmq drops the peer


def pushed(member, body=BODY, offset=0, size=SIZE, **wrong):
    """A push of a member, whose next seq is 0."""
    return m.Update(Push(member, 0, 0, 1, 1, 0.1)._replace(**wrong), offset, size), body


# Impossible fields of a member's push: it would wait for the answer for ever.
ENDS = [{"worker": 1}, {"worker": -1}, {"seq": 1}, {"seq": 2**30}, {"base_version": 1 << 30},
        {"steps": 0}, {"seconds": -1.0}, {"seconds": float("nan")}, {"seconds": float("inf")}]


def impossible(worker: int) -> list[tuple]:
    """Messages that no member sends: they are counted, and change nothing."""
    push = functools.partial(pushed, worker)
    bad_report = Report(seconds={"compute": 1.0})
    return [
        push(body=b""), push(body=BODY[:-1]), push(body=BODY + BODY), push(offset=1),
        push(size=SIZE + 1), push(size=0), push(size=2**33, body=bytes(4 * m.CHUNK)),
        (m.Initial(0, SIZE), BODY), (m.Join([TensorSpec("x", (SIZE,))]),), (m.Join([]),),
        (m.Heartbeat(bad_report),), (m.Leaving("bye", True, bad_report),),
    ]


# Messages of a member that do not decode: it would repeat them for ever.
UNDECODED = [
    pushed(2, offset=-SIZE), pushed(2, offset=2**40), pushed(2, size=-1), pushed(2, size=2**62),
    pushed(2, seq=-1), pushed(2, base_version=-1), pushed(2, steps=-5), pushed(2, samples=-1),
    pushed(2, samples=2.5), pushed(2, steps=None), (m.encode(UPDATE)[:-1], BODY), (b"",),
    (m.Join([TensorSpec("x", (-1,))]),), (m.Join([TensorSpec("x", (2**40, 2**40))]),),
    (m.Measured(0, {"m" * 65: 0.0}),), (m.Measured(0, {f"m{k}": 0.0 for k in range(65)}),),
    (m.Measured(0, {"m": float("nan")}),), (m.StopRun("x" * 5000),), (m.LearningRate(-1, 0.1),),
    (m.Heartbeat(Report(samples=1.5)),), (m.Heartbeat(None), BODY, BODY)]


@pytest.fixture
def training(jobs):
    """A run of three workers under asp: two that train, and one place for somebody else.

    Yields (server, members, newest version); the members continue until the test ends.
    """
    server = jobs.server("--connect_timeout=1", sync="asp", workers=3).listens()
    members = [FakeWorker(server.address, worker, steps=100_000, seconds=0.002)
               for worker in range(2)]
    until(lambda: all(m.agent and m.agent.seq > 5 for m in members), "both to push")
    return server, members


def finish(server, members):
    """Let the run end as it should, and check that it holds what its two workers did."""
    for member in members:
        member.leave()
    all_end(members)
    server.ends_well()
    assert_conserved(IntegerRun.of_threads(server, members))


def quiet(server):
    """For any number of rejections the log has at most one short line per second."""
    lines = [line for line in server.lines if "rejected" in line or "refused" in line]
    elapsed = float(server.find(r"^\[ *[\d.]+s\]")[-1].strip("[ ").partition("s")[0])
    assert len(lines) <= 2 * elapsed + 12, f"{len(lines)} lines in {elapsed} s"
    assert max(map(len, server.lines)) < 1000
    strays = [line for line in server.lines[:server.lines.index(
        server.find("all workers finished|saving|stopped:")[0])] if not line.startswith("[")]
    assert not strays, "what a stranger sent has broken a line of the log"


def test_a_thousand_random_strings(training):
    server, members = training
    draw = random.Random(0)
    for _ in range(300):
        raw_tcp(server.address, draw.randbytes(draw.randrange(1, 400)))
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\0" + bytes(31)
    for _ in range(100):  # a proper greeting, and then anything
        raw_tcp(server.address, greeting + draw.randbytes(draw.randrange(1, 400)))
    for _ in range(10):
        with Peer(server.address) as peer:
            for _ in range(60):
                peer.send(*(draw.randbytes(draw.randrange(100))
                            for _ in range(draw.randrange(1, 4))))
            peer.send(m.Heartbeat(None))
            peer.hears(m.Unknown)
    finish(server, members)
    counted = sum(event["count"] for event in server.events("malformed"))
    assert counted >= 10 * 60 + 300
    quiet(server)


def test_a_thousand_malformed_messages_of_strangers(training):
    server, members = training
    for _ in range(1000 // len(FROM_STRANGERS)):
        with Peer(server.address) as peer:
            for frames in FROM_STRANGERS:
                peer.send(*frames)
            peer.send(m.Heartbeat(None))
            peer.hears(m.Unknown)
        with Peer(server.address) as peer:
            peer.send(*OVERSIZED)
    finish(server, members)
    quiet(server)


def test_impossible_messages_of_a_member_change_nothing(training):
    server, members = training
    with Peer(server.address) as liar:
        assert liar.joins(2).seq == 0
        messages = impossible(2)
        for _ in range(10):
            for frames in messages:
                liar.send(*frames)
        liar.waits_until_handled()
        liar.send(m.Fetch(1))
        assert liar.hears(m.Model).size == SIZE, "it is a member still"
        liar.send(m.Leaving("no more", False, None))
    server.until("worker 2 left: no more")
    finish(server, members)
    counted = sum(event["count"] for event in server.events("malformed"))
    assert counted == 10 * len(messages)
    quiet(server)


def test_a_member_whose_message_does_not_decode_is_dropped_with_the_reason(training):
    server, members = training
    with Peer(server.address) as worker:
        worker.joins(2)
        with Peer(server.address) as stranger:  # who is not the worker
            stranger.send(*UNDECODED[0])
            stranger.send(m.Heartbeat(None))
            stranger.hears(m.Unknown)
        worker.waits_until_handled()
        worker.send(m.Leaving("no more", False, None))
    server.until("worker 2 left: no more")
    for frames in UNDECODED:
        with Peer(server.address) as worker:
            worker.joins(2)
            worker.send(*frames)
            reason = worker.hears(m.Refused).reason
            assert "worker 2 was given up" in reason and "no message of a worker" in reason
            worker.send(m.Heartbeat(None))
            worker.hears(m.Unknown)
    finish(server, members)
    quiet(server)


def test_a_member_with_an_impossible_push_is_dropped_with_the_reason(training):
    """It would wait for ever; what it had pushed before stays."""
    server, members = training
    for wrong in ENDS:
        with Peer(server.address) as worker:
            worker.joins(2)
            worker.send(*pushed(2, **wrong))
            reason = worker.hears(m.Refused).reason
            assert reason.startswith("worker 2 was given up: worker 2 pushed"), reason
            worker.send(m.Heartbeat(None))
            worker.hears(m.Unknown)
    finish(server, members)
    assert len(server.find("worker 2 was lost: worker 2 pushed")) == len(ENDS)


def test_a_worker_that_knows_a_later_server_is_not_admitted(training):
    server, members = training
    with Peer(server.address) as worker:
        worker.send(m.Hello(m.PROTOCOL, 2, {}))
        run = worker.hears(m.Welcome).run.id
    layout = IntegerReplica(2).layout
    again = m.Reattach(m.PROTOCOL, 2, run, 5, layout, 0, 0, 0, 0, False, True, 1.0)
    secret = read_settings(server.folder, with_secret=True)[SECRET]
    for say in (lambda worker: worker.send(m.Hello(m.PROTOCOL, 2, {}, run, 5)),
                lambda worker: worker.reattaches(again, bytes.fromhex(secret))):
        with Peer(server.address) as worker:
            say(worker)
            assert ("a later server of this run exists, of epoch 5; this one is of epoch 1"
                    in worker.hears(m.NotServing).reason)
    server.until("worker 2 knows a server of this run of epoch 5, later than epoch 1 of this one")
    finish(server, members)


def test_a_push_that_is_not_finite_is_rejected_and_answered(training):
    server, members = training
    with Peer(server.address) as worker:
        worker.joins(2)
        worker.hears(m.Granted)
        for seq, value in enumerate([np.nan, np.inf, -np.inf]):
            update = np.array([0, 0, value, 0, 0], np.float32)
            worker.send(m.Update(Push(2, seq, 0, 1, 1, 0.1), 0, SIZE), update.tobytes())
            answer = worker.hears(m.Ack)
            assert (answer.seq, answer.accepted, answer.reason) == (seq, False, "not finite")
        worker.send(m.Leaving("no more", False, None))
    server.until("worker 2 left: no more")
    finish(server, members)
    assert [e["reason"] for e in server.events("reject")] == 3 * ["not finite"]


def test_text_of_a_worker_cannot_forge_a_line_of_the_log(training):
    server, members = training
    with Peer(server.address) as worker:
        worker.joins(2)
        worker.send(m.Leaving("tired\n[    0.0s] worker 0 was lost", False, None))
        server.until("worker 2 left: tired")
    finish(server, members)
    assert not server.find(r"^\[    0.0s\] worker 0 was lost")


@pytest.mark.parametrize("claim", [
    m.Join([TensorSpec("x", (2**33,))]), m.Join([TensorSpec("x", (2**34,))]),
    m.Join([TensorSpec("x" * 900_000, (4,))]), m.Join(100_000 * [TensorSpec("x", ())])],
    ids=["32 GiB", "more than the largest", "a name of 900 KB", "100,000 variables"])
def test_a_first_worker_that_claims_too_much_changes_nothing(jobs, claim):
    """The first worker is asked for W_0, and its message decides the size of the model."""
    server = jobs.server(sync="asp", workers=2).listens()
    with Peer(server.address) as liar:
        liar.send(m.Hello(m.PROTOCOL, 0, {}))
        liar.send(claim)
        liar.send(m.Initial(0, 2**33), bytes(4 * m.CHUNK))
        liar.send(m.Heartbeat(None))
        liar.hears(m.Alive, m.Refused)
        liar.send(m.Leaving("never mind", False, None))
    members = [FakeWorker(server.address, worker, steps=5) for worker in range(2)]
    all_end(members)
    server.ends_well()
    server.was_clean()


def test_a_worker_that_brings_nan_is_refused_and_the_next_is_asked(jobs):
    server = jobs.server(sync="asp", workers=1).listens()
    with Peer(server.address) as peer:
        assert peer.joins(0).send_initial
        peer.send(m.Initial(0, SIZE), np.full(SIZE, np.nan, np.float32).tobytes())
        assert "NaN or infinite" in peer.hears(m.Refused).reason
        peer.send(m.Goodbye())
    member = FakeWorker(server.address, 0, steps=3)
    member.ends()
    server.ends_well()


# Tokens.


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_bytes(TOKEN + b"\n")
    return path


def test_with_the_token_the_run_is_as_without(jobs, token_file):
    server = jobs.server(f"--token_file={token_file}", sync="wbsp").listens()
    members = [FakeWorker(server.address, worker, steps=10, token=TOKEN) for worker in range(2)]
    all_end(members)
    server.ends_well()
    vector = checkpoint.load(server.folder / "checkpoint.safetensors").vector
    assert all(member.replica.x.tobytes() == vector.tobytes() for member in members)


@pytest.mark.parametrize("ours, theirs", [
    (TOKEN, b"another secret, as long"), (TOKEN, None), (None, TOKEN)],
    ids=["another", "none on the worker", "none on the server"])
def test_another_token_is_refused_and_the_run_continues(jobs, token_file, ours, theirs):
    flags = [f"--token_file={token_file}"] if ours else []
    server = jobs.server(*flags, sync="asp", workers=1).listens()
    intruder = FakeWorker(server.address, 0, steps=1, token=theirs)
    with pytest.raises(TransportError) as caught:
        intruder.ends(20)
    assert "token" in str(caught.value) and "--token_file" in str(caught.value)
    assert "\n" not in str(caught.value)
    server.until("rejected .* does not speak the protocol or know the token")
    member = FakeWorker(server.address, 0, steps=5, token=ours)
    member.ends()
    server.ends_well()
    assert sum(event["count"] for event in server.events("malformed")) >= 1
    server.was_clean()


def test_the_token_is_in_no_file_and_no_line_of_a_run(jobs, token_file):
    server = jobs.server(f"--token_file={token_file}", sync="asp", workers=1).listens()
    FakeWorker(server.address, 0, steps=3, token=TOKEN).ends()
    server.ends_well()
    files = [path for path in server.folder.rglob("*") if path.is_file()]
    assert files and not [path for path in files if TOKEN in path.read_bytes()]
    assert TOKEN.decode() not in server.text


# Command lines that are refused.


@pytest.mark.parametrize("flags, says", [
    (["--host=0.0.0.0", "--token_file="], "refusing to listen on 0.0.0.0 without a token"),
    (["--token_file=absent"], "absent"),
    (["--sync_option=s=3"], "pcc: unknown option 's'; known: commit, trigger"),
    (["--sync_option=s"], "'s' is not of the form key=value"),
    (["--sync=ssp", "--sync_option=s=-1"], "ssp: option s=-1 is below 0"),
    (["stray"], "unknown argument 'stray'"),
    (["--base_dir=/"], "names no folder"),
])
def test_a_bad_command_line_is_one_clear_line(jobs, flags, says):
    server = jobs.server(*flags)
    assert server.ends() == 1
    server.was_clean()
    (line,) = server.lines
    assert line.startswith("wbsp.ps: ") and says in line
    assert not (jobs.folder / "runs").exists(), "a run's folder, and no run"


def test_an_unknown_model_lists_the_known_ones(jobs):
    server = jobs.server(sync="wsbp")
    assert server.ends() != 0
    server.was_clean()
    assert server.find("bsp.*asp.*ssp.*wbsp.*pcc")


def test_a_taken_port_is_one_clear_line(jobs):
    first = jobs.server().listens()
    second = jobs.server(port=int(first.address.rpartition(":")[2]))
    assert second.ends() == 1
    (line,) = second.lines
    assert "cannot listen on localhost:" in line and "--port_base" in line


def test_the_address_may_come_from_tf_config(jobs):
    port = free_port()
    config = {"cluster": {"ps": [f"localhost:{port}"], "worker": ["a:1", "b:1", "c:1"]},
              "task": {"type": "ps", "index": 0}}
    server = jobs.start("server", "-m", "wbsp.ps", TF_CONFIG=json.dumps(config))
    assert server.until(f"listening on port {port}, waiting for 3 worker")


def test_chunks_of_an_abandoned_push_are_not_mixed_with_the_next(jobs):
    """A worker that dies in mid-push leaves half an update, which never counts."""
    size = m.CHUNK + 3
    server = jobs.server(sync="asp", workers=1).listens()
    replica = IntegerReplica(0, size)
    with Peer(server.address) as peer:
        peer.send(m.Hello(m.PROTOCOL, 0, {}))
        peer.send(m.Join(replica.layout))
        assert peer.hears(m.Joined).send_initial
        for offset, chunk in split(replica.x):
            peer.send(m.Initial(offset, size), bytes(chunk))
        peer.hears(m.Granted)
        half = np.full(size, 1000, np.float32)
        (offset, chunk), _ = split(half)
        peer.send(m.Update(Push(0, 0, 0, 1, 1, 0.1), offset, size), bytes(chunk))
        peer.waits_until_handled()
        whole = np.full(size, 7, np.float32)
        for offset, chunk in split(whole):
            peer.send(m.Update(Push(0, 0, 0, 1, 1, 0.1), offset, size), bytes(chunk))
        assert peer.hears(m.Ack).accepted
        peer.send(m.Leaving("done", True, None))
        peer.hears(m.Final)
        peer.send(m.Goodbye())
        server.ends_well()
    vector = checkpoint.load(server.folder / "checkpoint.safetensors").vector
    assert np.array_equal(vector, replica.x + 7)


def test_reports_of_a_worker_are_summed_over_its_processes(training):
    server, members = training
    for life, pulls in enumerate((3, 4)):
        with Peer(server.address) as peer:
            peer.joins(2)
            for so_far in (1, pulls):
                peer.send(m.Heartbeat(Report(pulls=so_far, last_pull_seconds=pulls / 8)))
            peer.waits_until_handled()
            peer.send(m.Leaving(f"life {life} is over", False, Report(pulls=pulls)))
            server.until(f"worker 2 left: life {life} is over")
    finish(server, members)
    summary = json.loads((server.folder / "summary.json").read_text())
    assert summary["workers"]["2"]["pulls"] == 7
    for worker, member in enumerate(members):
        assert summary["workers"][str(worker)]["pulls"] == member.runtime.report().pulls
