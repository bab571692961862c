"""Workers and a server over real sockets, in lossy formats.

The server is a process of its own, the workers are threads here.
"""

from itertools import pairwise

import numpy as np
import pytest
from fake_worker import FakeWorker, all_end
from hostile_peer import Peer
from integer_replica import IntegerReplica
from jobs import until
from server_and_standby import NEVER, ServerAndStandby

from wbsp.core.store import UNSENT
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.sync.base import Push
from wbsp.tensors.codecs import parse
from wbsp.tensors.layout import TensorSpec
from wbsp.tensors.ops import bounds
from wbsp.wire.client import Fetched
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.codec import CHUNK

LOSSY = ["bfloat16", "int8", "topk:0.02"]
LARGE = 4 * CHUNK + 77  # the words of int8 take two chunks
SMALL = 600
STEPS = 12


class Random(IntegerReplica):
    """A worker whose steps are random; it records adopted versions by their bytes' hash."""

    def __init__(self, worker, size):
        super().__init__(worker, size)
        self.layout = [TensorSpec("x", (size,))]
        self.made = np.zeros(size)

    def step(self):
        self.x = self.x + self._draw.standard_normal(self.x.size).astype(np.float32)

    def cut(self):
        update = self.x - self.anchor
        self.anchor = self.x
        self.made += update
        return update

    def adopt(self, vector, how):
        self.adopted.append(hash(vector.tobytes()))
        self.x = vector if how == "replace" else vector + (self.x - self.anchor)
        self.anchor = vector


class Spy(FakeWorker):
    """A member that records the sent part of each of its cuts, and the received versions."""

    def __init__(self, address, worker, size, steps=STEPS):
        super().__init__(address, worker, steps + 3 * worker, seconds=0.01,
                         replica=Random(worker, size))
        self.sent, self.came, self.versions = [], [], {}
        self.counted, self.told = 0.0, 0  # sum of weight * sent part; answers
        self.starts = {0, size // 2}  # of ranges, where there are two shards

    def _train(self, *plan):
        client, join = self._transport.client, self._transport.join

        def noting(*arguments):
            joined = join(*arguments)
            session = client.session
            send, receive, answered = session.sending.send, client.receive, session.answered

            def sent(update):
                found = send(update)
                self.sent.append((found.words.nbytes, found.vector.copy()))
                return found

            def received(message, *rest):
                if isinstance(message, m.Model) and message.offset in self.starts:
                    self.came.append(message)
                return noted(receive(message, *rest))

            def noted(commands):
                for command in commands:
                    if isinstance(command, Fetched):
                        self.versions[command.version] = hash(command.vector.tobytes())
                return commands

            def told(push, sent, ack, *spans):
                self.counted = self.counted + ack.weight * sent.astype(float)
                self.told += 1
                answered(push, sent, ack, *spans)

            session.sending.send, client.receive, session.answered = sent, received, told
            # a version may have come before it was asked for
            client.send = lambda *arguments, send=client.send: noted(send(*arguments))
            return joined

        self._transport.join = noting
        super()._train(*plan)

    @property
    def first(self):
        """Hash of the version that the worker adopted first."""
        return self.replica.adopted[:1]

    @property
    def unsent(self):
        return self._transport.client.session.sending.unsent


def initial(members):
    """W_0: all ones if worker 0 brought it, all twos if worker 1 did."""
    ones = np.ones(members[0].replica.x.size, np.float32)
    assert members[0].first == members[1].first
    return 1.0 if members[0].first == [hash(ones.tobytes())] else 2.0


@pytest.mark.parametrize("name, shards, size", [
    ("bfloat16", 1, SMALL), ("int8", 1, LARGE), ("topk:0.02", 1, SMALL), ("int8", 2, LARGE),
    ("topk:0.02", 2, SMALL)])
def test_all_workers_hold_equal_versions_and_sent_updates_are_conserved(jobs, name, shards, size):
    server = jobs.server(f"--wire={name}", f"--shards={shards}").listens()
    members = [Spy(server.address, worker, size) for worker in range(2)]
    all_end(members)
    server.ends_well()
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    newest, seen = saved.state.version, {}
    for member in members:
        assert member.versions[newest] == hash(saved.vector.tobytes())
        for version, digest in member.versions.items():
            assert seen.setdefault(version, digest) == digest, "the same bytes for everyone"
        assert set(member.replica.adopted) <= set(member.versions.values())
        assert {nbytes for nbytes, _ in member.sent} == {
            4 * sum(parse(name).words(b - a) for a, b in pairwise(bounds(size, shards)))}
        sent = sum(vector.astype(float) for _, vector in member.sent)
        assert np.allclose(sent + member.unsent, member.replica.made, atol=1e-3)
        whole = [model for model in member.came if model.base == m.NONE]
        assert whole[0] is member.came[0] and len(whole) < len(member.came), member.said
        for model in member.came:
            assert model.size == size if model.base == m.NONE else model.size < size
    assert [member.told for member in members] == [len(member.sent) for member in members]
    total = initial(members) + sum(member.counted for member in members)
    assert np.allclose(saved.vector + saved.outer.get(UNSENT, 0), total, atol=1e-3)


def test_a_run_continues_in_the_format_in_which_it_was_begun(jobs):
    server = jobs.server("--wire=int8").listens()
    all_end([Spy(server.address, worker, SMALL) for worker in range(2)])
    server.ends_well()
    before = checkpoint.load(server.folder / "checkpoint.safetensors")
    assert before.outer[UNSENT].any()
    for flags, said in ((["--wire=topk:0.02"], "started with --wire=int8"),
                        (["--wire=int8", "--shards=2"], "started with 1 shards")):
        other = jobs.server("--resume=run-001", *flags)
        assert other.ends() == 1
        (line,) = other.find("wbsp.ps:")
        assert said in line
    again = jobs.server("--wire=int8", "--resume=run-001").listens()
    members = [Spy(again.address, worker, SMALL) for worker in range(2)]
    all_end(members)
    again.ends_well()
    after = checkpoint.load(again.folder / "checkpoint.safetensors")
    total = before.vector.astype(float) + before.outer[UNSENT]
    total += sum(member.counted for member in members)
    assert again.folder == server.folder
    assert np.allclose(after.vector + after.outer[UNSENT], total, atol=1e-4)


@pytest.mark.parametrize("name, shards", [("int8", 1), ("topk:0.02", 1), ("int8", 2)])
def test_an_update_counts_once_when_a_standby_takes_over(jobs, name, shards):
    pair = ServerAndStandby(jobs, flags=(NEVER, f"--wire={name}"), shards=str(shards))
    members = [Spy(",".join(pair.addresses), worker, SMALL, steps=100_000) for worker in range(2)]
    pair.standby.until("holding version")
    until(lambda: all(len(member.came) > 5 for member in members), "some versions")
    pair.server.kill()
    pair.standby.until("taking over")
    came = [len(member.came) for member in members]
    until(lambda: all(len(member.came) > n + 3 for member, n in zip(members, came, strict=True)),
          "more versions")
    for member in members:
        member.leave()
    all_end(members)
    pair.standby.ends_well()
    saved = checkpoint.load(pair.standby.folder / "checkpoint.safetensors")
    total = initial(members) + sum(member.counted for member in members)
    assert np.allclose(saved.vector + saved.outer.get(UNSENT, 0), total, atol=1e-3)
    for member in members:
        assert member.replica.x.tobytes() == saved.vector.tobytes()


@pytest.mark.parametrize("flags, said", [
    (["--wire=int4"], "give float32, bfloat16, int8 or topk:0.01"),
    (["--wire=topk:0.5"], "above 0 and at most 0.25")])
def test_a_bad_wire_ends_in_one_line(jobs, flags, said):
    server = jobs.server(*flags)
    assert server.ends() == 1
    (line,) = server.lines
    assert said in line
    server.was_clean()


# Bytes that no worker sends.


def push(words, seq=0, **wrong):
    body = words.tobytes()
    return m.encode(m.Update(Push(1, seq, 0, 1, 1, 0.1), **{
        "offset": 0, "size": len(body) // 4, **wrong})), body


def impossible(name):
    wire, vector = parse(name), np.ones(SMALL, np.float32)
    good = wire.encode(vector)
    yield from [push(vector), push(good[:-1]), push(good[:0]), push(np.append(good, good)),
                push(good, size=SMALL), push(good, offset=1)]
    if name == "int8":
        wrong = good.copy()
        wrong[0] = -1
        yield push(wrong)
    if name.startswith("topk"):
        for index, value in [(0, 2**32 - 1), (0, 0), (0, 11), (12, SMALL), (12, 2**32 - 1), (1, 9)]:
            wrong = good.copy()
            wrong[index:index + 1].view("<u4")[0] = value
            yield push(wrong)


@pytest.mark.parametrize("name", LOSSY)
def test_bytes_that_no_encoder_makes_change_nothing(jobs, name):
    server = jobs.server("--connect_timeout=1", f"--wire={name}", sync="asp").listens()
    member = FakeWorker(server.address, 0, steps=100_000, seconds=0.002,
                        replica=Random(0, SMALL))
    until(lambda: member.agent and member.agent.seq > 5, "the first to push")
    with Peer(server.address) as liar:
        liar.send(m.Hello(m.PROTOCOL, 1, {}))
        liar.hears(m.Welcome)
        liar.send(m.Join([TensorSpec("x", (SMALL,))]))
        liar.hears(m.Joined)
        liar.hears(m.Granted)
        messages = list(impossible(name))
        for frames in messages:
            liar.send(*frames)
        liar.waits_until_handled()
        bad = np.ones(SMALL, np.float32)
        bad[7] = np.nan
        liar.send(*push(parse(name).encode(bad)))
        ack = liar.hears(m.Ack)
        assert (ack.seq, ack.accepted, ack.reason) == (0, False, "not finite")
        liar.send(*push(parse(name).encode(np.ones(SMALL, np.float32)), seq=1))
        assert liar.hears(m.Ack).accepted, "it is a member still"
        liar.send(m.Leaving("no more", False, None))
    seq = member.agent.seq
    until(lambda: member.agent.seq > seq, "the other to continue")
    member.leave()
    member.ends()
    server.ends_well()
    assert sum(event["count"] for event in server.events("malformed")) == len(messages)
