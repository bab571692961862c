"""The schema: what is sent arrives as it was, and nothing else decodes."""

import hashlib
import math
import re
import struct
from typing import get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wbsp.core.messages import LetGo, Message, Place, Range
from wbsp.core.stats import AnsweredWork, Report
from wbsp.limits import text_of
from wbsp.sync.base import Direct, Push, WorkerRule
from wbsp.tensors.layout import STATES, Entry, LayerState, TensorSpec
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.messages.base import MAX_MESSAGE
from wbsp.wire.messages.reading import ReadVersion, VersionPart
from wbsp.wire.messages.requests import Answers, Requests

FROM_WORKER = [
    m.Hello(m.PROTOCOL, 3, {"sync": "wbsp", "lr": "0.1"}),
    m.Hello(m.PROTOCOL, 1, {}, series="ab12", fit=2),
    m.Hello(m.PROTOCOL, 1, {}, series="ab12", fit=3, leaves=True),
    m.Hello(m.PROTOCOL, 1, {}, series="ab12", fit=3, left=True),
    m.Hello(m.PROTOCOL, 1, {}, series="ab12", fit=3, anew=True, nonce=bytes(32), proof=bytes(32)),
    m.Join([TensorSpec("conv/kernel", (5, 5, 3, 64)), TensorSpec("scale", ())]),
    m.Join([TensorSpec("scale", ())], "wbsp-" + 32 * "0"),
    m.Join([TensorSpec("scale", ())], "", [LayerState("layer words", 32 * "0", (1.5, 0.5, -1.0))]),
    m.Join([TensorSpec("scale", ())], data=m.SharedData(60_000, 128, 5, 7, validate="wait"),
           first_epoch=2),
    m.AskWork(1280, 7),
    m.AskWork(1280, 7, 256, 512),
    m.Join([TensorSpec("x", (2,))], work=m.WorkHeld(m.SharedData(60_000, 128, 5), 0, [], True,
                                                    [(0, 128)], [(256, 300)], 7)),
    m.Update(Push(3, 4, 2, 5, 640, 1.5, spans=((0, 640), (60_000, 60_128))), 0, 2),
    m.StopRun("good enough"),
    m.Measured(3, {"val_loss": 0.5}),
    m.LearningRate(3, 0.01),
    m.Initial(m.CHUNK, 2 * m.CHUNK),
    m.Update(Push(3, 7, 2, 4, 512, 0.25), 0, 10),
    m.Update(Push(3, 8, 2, 4, 512, 0.25, batch=128, least=16), 0, 10),
    m.Update(Push(3, 8, 2, 4, 512, 0.25, loss=1.5, cpu=0.5, memory=0.25), 0, 10),
    m.Update(Push(3, 8, 2, 4, 512, 0.25, to=4096), 0, 10),
    m.Update(Push(3, 9, 2, 4, 512, 0.25), 4, 10, 5, place=Place(1 << 62, 16, 24)),
    m.Update(Push(3, 8, 2, 4, 512, 0.25), 0, 10, 3, 7),
    m.Fetch(5),
    m.Fetch(5, 7),
    m.Fetch(5, 7, 4),
    m.Update(Push(3, 8, 2, 4, 512, 0.25), 0, 10, 3, returned=2),
    m.CutQuery(9, 3, 0.25),
    m.Heartbeat(None),
    m.Heartbeat(Report(steps=3, loss=0.5)),
    m.Leaving("finished", True, Report(pushes=2)),
    m.Reattach(m.PROTOCOL, 3, "ab12", 2, [TensorSpec("scale", ())], 4, 9, 6, 7, False, True,
               2.5, "wbsp-" + 32 * "0"),
    m.Kept(AnsweredWork(4, 8, 20, 640, 1.5, 6, {"stale": 1}), 0, 10),
    m.Kept(AnsweredWork(4, 8, 20, 640, 1.5, 6, {}), 0, 10, Place(1 << 62, 0, 40)),
    m.Kept(AnsweredWork(4, 8, 20, 640, 1.5, 6, {}, ((0, 640), (1280, 1290))), 0, 10),
    m.Reattach(m.PROTOCOL, 3, "ab12", 2, [TensorSpec("scale", ())], 4, 9, 6, 7, False, True,
               2.5, work=m.WorkHeld(m.SharedData(60_000, 128, 5), 640, [Range(640, 1280, 1290)])),
    m.Goodbye(),
    m.Reattach(m.PROTOCOL, 3, "ab12", 2, [TensorSpec("scale", ())], 4, 9, 6, 7, False, True,
               2.5, "", "place", bytes(32), bytes(32), 1),
    m.Hello(m.PROTOCOL, 3, {}, own=bytes(16)),
    m.Hello(m.PROTOCOL, None, {}, own=bytes(16)), m.Hello(m.PROTOCOL, 3, {}, given=True),
    m.Elected(3),
    m.Follow(m.PROTOCOL, {"sync": "wbsp"}, 2607),
    m.Follow(m.PROTOCOL, {}, 2607, "ab12", 5),
    m.Follow(m.PROTOCOL, {}, 2607, socket="wbsp-" + 32 * "a"),
    m.Follow(m.PROTOCOL, {}, 2607, "ab12", 5, "", bytes(32), bytes(32)),
    m.Held(4, 9),
    m.Held(4, 9, 8, bytes(32)),
    m.Held(4, 10, chunks=2),
    m.Ask("ab12"),
    m.Ask("ab12", bytes(32)),
    m.Ask("ab12", bytes(32), 3),
    m.NextVersion(m.PROTOCOL),
    m.NextVersion(m.PROTOCOL, "ab12", 7, True, bytes(32), bytes(32), bytes(32)),
    m.AskVersion(),
    m.AskVersion(4, True),
    m.AskPast(),
    ReadVersion("version-7.safetensors", 1 << 20),
    m.Join([TensorSpec("scale", ())], frozen=[TensorSpec("x", (3,))], digest=32 * "0", sgd=True),
    m.Join([TensorSpec("scale", ())], local=["net/adapter"], entries=[
        Entry("head", "scale"), Entry("count", "", "int64", (1,), bytes(8))]),
    m.AskFrozen(1 << 20),
    m.Evaluated("ab12", 7, {"accuracy": 0.5, "loss": 1.25}, bytes(32), bytes(32)),
    s.Lead(m.PROTOCOL, "ab12", 3, 8),  # to a server that somebody takes for a shard
]
FROM_SERVER = [
    m.Welcome(m.RunSettings("ab", folder="wbsp/run-001", terms={"seed": "1"}), 1.5,
              WorkerRule("directed", "ack", "replace")),
    m.Welcome(m.RunSettings(), 1.5, WorkerRule("every_step", "model", "replace", 4, 4, True, 96)),
    m.Welcome(m.RunSettings(), 1.5, WorkerRule("every_step", "model", "replace"), 2, 7),
    m.Welcome(m.RunSettings(), 1.5, WorkerRule("every_step", "model", "replace"), 2, key=bytes(32)),
    m.Joined(4, 40, True, 2.5, 1),
    m.Joined(4, 40, False, 2.5, 1, work=m.WorkPlace(m.SharedData(60_000, 128, 5), 0, 0)),
    m.Work(1280, 60_000, 60_128, 1),
    m.Withdrawn(1280),
    m.Measured(3, {"val_loss": 0.5}),
    m.LearningRate(3, 0.01),
    m.Refused("no"),
    m.Refused("no", True, bytes(32)),
    m.Refused("no", True, ends=True),
    m.Refused("no", True, follows=True),
    m.Ack(7, False, "not finite", None, True, 0.0, 3, 40, 2),
    m.Ack(8, True, None, 3, False, 0.5, 3, 40, 3, examples=1 << 40),
    m.Ack(8, True, None, 3, False, 0.5, 3, 40, 3,
          m.Model(5, 3, 0, 10, place=Place(1 << 62, 0, 40))),
    m.Granted(3),
    m.Directed(Direct(3, hold=True)),
    m.Directed(Direct(3, batch=96, start=1 << 40)),
    m.Directed(Direct(3, batch=4, why="eight workers share the run")),
    m.CutDecision(9, False),
    m.Model(5, 3, 0, 10),
    m.Model(5, 3, 0, 10, 2),
    m.Model(5, 3, 0, 18, 2, in_blocks=True),
    m.Stop("enough"),
    m.Stop("interrupted by SIGINT", True),
    m.Stop("worker 0: enough", early=True),
    m.Final(9),
    m.Alive(),
    m.Alive(7, 2),
    m.Resend(5),
    m.Reattached(2, True, 5, 3, None),
    m.Reattached(2, True, 5, 3, m.Ack(8, True, None, None, False, 0.5, 2, 40, 3)),
    m.Reattached(2, True, 5, 3, None, void=True),
    m.Reattached(2, True, 5, 3, None, own=[(0, 128), (256, 300)], epochs=1),
    m.Unknown(),
    m.Elect(3, 1),
    m.Leading(3),
    m.Leading(3, bytes(32), bytes(32)),
    m.NotServing("in waiting"),
    m.NotServing("in waiting", 3),
    m.NotServing("in waiting", rank=3),
    m.Challenge(bytes(32), bytes(32), [bytes(32)]),
    m.Following('{"id": "ab12"}', True),
    m.Recorded('{"id": "ab12"}', True),
    m.Copy(4, 10, "{}"),
    m.Copy(4, 0, "{}", 1 << 62),
    m.CopyChunk(4, 0),
    m.AllHave(4),
    m.Vacant(),
    m.Vacant(bytes(32)),
    m.Over("all workers finished"),
    m.Over("all workers finished", True),
    m.Joined(4, 40, False, 2.5, 1, frozen=True, run_examples=1 << 40),
    m.FrozenPart(1 << 20, bytes(8)),
    m.VersionAt("ab12"),
    VersionPart(1 << 30, 1 << 20, b"some"),
    m.VersionAt("ab12", 7, "version-7.safetensors", True),
    m.VersionAt("ab12", 7, "version-7.safetensors", False, 4, 2),
    m.VersionAt("ab12", last=True, fit=2, ends=True),
    m.Noted("version 7 was evaluated before"),
]
GROUP = m.ShardGroup(1 << 62, [("", 2701), ("10.0.0.2", 2702)])
FROM_SERVER += [
    m.Joined(4, 40, False, 2.5, 1, GROUP),
    m.Joined(4, 40, False, 2.5, 1, None, 1 << 62, 90),
    m.Joined(4, 40, False, 2.5, 1, None, 1 << 62, 90, "place", bytes(32)),
    m.Resend(5, GROUP),
    m.Resend(5, None, 1 << 62),
    m.Reattached(2, True, 5, 3, None, GROUP),
    m.Reattached(2, True, 5, 3, None, None, 1 << 62),
    m.Reattached(2, True, 5, 3, None, None, 1 << 62, bytes(32), 1),
]
TO_SHARD = [
    s.Lead(m.PROTOCOL, "ab12", 3, 8),
    s.Lead(m.PROTOCOL, "ab12", 3, 8, bytes(32), bytes(32), bytes(32)),
    s.Begin(5, 10, 20, 7, '{"name": "nesterov", "options": {"rate": 0.7}}', {"velocity": 5}),
    s.Floats(0, m.CHUNK),
    s.Admit(3, 1 << 62),
    s.Dismiss(3, 1 << 62),
    s.Apply(3, 7, False, 0.5, 12),
    s.Drop(3, 8),
    s.Commit(8),
    s.Send(3, 5, 8),
    s.Collect(2),
    s.Beat(4),
    m.Over("all workers finished"),
    s.Present(1 << 62),
    s.Present(1 << 62, bytes(32), bytes(32)),
    s.Slice(1 << 62, 7, True, 5, 9),
]
FROM_SHARD = [
    s.Led(3),
    s.Denied("the shard follows another"),
    m.Challenge(bytes(32), bytes(32), [bytes(32)]),
    s.Holds(1 << 62, 7, True, 0.5),
    s.Made(8, 0.5),
    s.Arriving(1 << 62),
    s.Collected(2, 8, {"velocity": 5}),
    s.Floats(2, m.CHUNK),
    s.Misuse(3, "not a wbsp message"),
    s.Beat(4),
    s.Ready(1 << 62),
    m.Model(5, 8, 5, 20),
    m.Model(5, 8, 5, 7, 6),
]
BOTH = [(m.FromWorker, message) for message in FROM_WORKER] + [
    (m.FromServer, message) for message in FROM_SERVER] + [
    (s.ToShard, message) for message in TO_SHARD] + [
    (s.FromShard, message) for message in FROM_SHARD]
PHASES = st.sampled_from([m.FromWorker, m.FromServer, s.ToShard, s.FromShard])


# Of the bytes of all messages above, with what they embed, under each protocol number.
BYTES = {32: "ee6ed51c77c2e0fad32beb1a3d5266a10c0d38cdd64732e6edda37ed33617f28"}


def test_the_bytes_of_a_protocol_number_stay_what_they_are():
    """Processes with the same number must understand each other, in any release.

    Fails where a message, Push, Direct, WorkerRule or Report changes: raise PROTOCOL, and say here
    what its bytes are.
    """
    numbered = b"".join(m.encode(message) for _, message in BOTH)
    assert BYTES[m.PROTOCOL] == hashlib.sha256(numbered).hexdigest()


def test_every_message_type_is_covered_here_or_in_test_requests():
    requests, answers = set(get_args(Requests)), set(get_args(Answers))
    assert {type(message) for message in FROM_WORKER} | requests == set(get_args(m.FromWorker))
    assert {type(message) for message in FROM_SERVER} | answers == set(get_args(m.FromServer))
    assert {type(message) for message in TO_SHARD} == set(get_args(s.ToShard))
    assert {type(message) for message in FROM_SHARD} == set(get_args(s.FromShard))


@pytest.mark.parametrize("kind, message", BOTH, ids=lambda x: type(x).__name__)
def test_a_message_arrives_as_it_was_sent(kind, message):
    arrived = m.decode(kind, m.encode(message))
    assert type(arrived) is type(message)
    assert repr(arrived) == repr(message)  # NaN, the loss before the first step, equals nothing


def test_a_message_of_the_other_side_is_refused():
    with pytest.raises(m.WireError, match="not a wbsp message"):
        m.decode(m.FromServer, m.encode(m.Goodbye()))
    with pytest.raises(m.WireError, match="not a wbsp message"):
        m.decode(m.FromWorker, m.encode(m.Alive()))


@settings(max_examples=5 * settings.default.max_examples)
@given(PHASES, st.binary(max_size=200))
def test_random_bytes_raise_wire_error_alone(kind, data):
    _decodes_or_wire_error(kind, data)


@settings(max_examples=10 * settings.default.max_examples)
@given(PHASES, st.sampled_from(BOTH), st.data())
def test_mutated_messages_raise_wire_error_alone(kind, example, data):
    mutant = bytearray(m.encode(example[1]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutant)))
        cut = data.draw(st.integers(0, 3))
        mutant[at:at + cut] = data.draw(st.binary(max_size=3))
    _decodes_or_wire_error(kind, bytes(mutant))


def _decodes_or_wire_error(kind, data):
    try:
        message = m.decode(kind, data)
    except m.WireError as error:
        assert str(error).startswith("not a wbsp message: ") and "\n" not in str(error)
    else:
        assert isinstance(message, kind)
        m.encode(message)


@pytest.mark.parametrize("count", [1 << 20, 0xffffffff])
def test_a_claimed_length_is_not_believed(count):
    """0xdd announces an array of `count`; nothing may be allocated for what is not there."""
    claim = b"\xdd" + struct.pack(">I", count)
    layout = m.encode(m.Join([]))[:-1] + claim
    shape = m.encode(m.Join([TensorSpec("x", ())]))[:-1] + claim
    for data in (layout, shape, claim):
        with pytest.raises(m.WireError):
            m.decode(m.FromWorker, data)


# Of the contract of synchronization models, which knows no message; it comes from the server,
# which has checked it. A protocol's number is refused by name.
UNBOUNDED = {WorkerRule}
NUMBERS = {"secret", "name", "segment", "memory", "time"}  # of 63 bits
KINDS = [m.FromWorker, m.FromServer, s.ToShard, s.FromShard]


def parts(info, path="", numbers=True):
    """Each leaf and collection of a type: its path, its shape, and whether its integers must have
    bounds."""
    yield path, info, numbers
    if hasattr(info, "fields"):
        numbers = numbers and info.cls not in UNBOUNDED
        for field in info.fields:
            yield from parts(field.type, f"{path} {info.cls.__name__}.{field.name}",
                             numbers and field.name != "protocol")
    for one in [*getattr(info, "types", ()), *getattr(info, "item_types", ())]:
        yield from parts(one, path, numbers)
    for name in ("key_type", "value_type", "item_type"):
        if hasattr(info, name):
            yield from parts(getattr(info, name), path, numbers)


def is_bounded(path, info, numbers):
    """Whether a peer cannot send more of this than the code expects."""
    kinds = msgspec.inspect
    match info:
        case kinds.IntType():
            return not numbers or (info.ge is not None and (
                info.le is not None or info.lt is not None or path.split(".")[-1] in NUMBERS))
        case kinds.ListType() | kinds.VarTupleType() | kinds.SetType() | kinds.FrozenSetType() | \
                kinds.DictType() | kinds.BytesType() | kinds.StrType() | kinds.ByteArrayType():
            return info.max_length is not None
        case kinds.CustomType():
            return info.cls.most <= MAX_MESSAGE
    return not isinstance(info, kinds.AnyType | kinds.RawType | kinds.ExtType)


def is_for_a_line(info):
    """Whether this is no text, or one that holds nothing but what can be printed in a line."""
    kinds = msgspec.inspect
    if isinstance(info, kinds.StrType):  # such as the name of a socket
        return info.pattern is not None and not any(
            re.search(info.pattern, text) for text in (FORGED, FORGED.strip(), "x"))
    return not isinstance(info, kinds.CustomType) or (
        text_of(info.cls, FORGED) == "?worker 0?[2J?" and not isinstance(FORGED, info.cls))


FORGED = "\nworker 0\x1b[2J\u202e"


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_message_is_bounded(kind):
    assert [path for path, *part in parts(msgspec.inspect.type_info(kind))
            if not is_bounded(path, *part)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_of_a_message_can_be_printed_in_a_line(kind):
    assert [path for path, info, _ in parts(msgspec.inspect.type_info(kind))
            if not is_for_a_line(info)] == []


def test_every_message_is_of_a_forged_kind():
    every = {one for kind in KINDS for one in get_args(kind) or (kind,)}
    assert {*Message.__subclasses__()} - every == {LetGo}  # which a server sends as Refused


def test_every_decoded_kind_is_forged():
    """Messages over shared memory are of these kinds, too."""
    assert {*m._decoders} == {*KINDS}


def test_unprintable_characters_arrive_as_question_marks():
    sent = m.Measured(3, {f"val_x{FORGED}": 1.0})
    assert m.decode(m.FromWorker, m.encode(sent)) == m.Measured(
        3, {"val_x?worker 0?[2J?": 1.0})
    assert m.decode(m.FromServer, m.encode(m.Refused("Größe 3 ≠ 4"))) == m.Refused("Größe 3 ≠ 4")


@pytest.mark.parametrize("text", ["x" * 65, b"x", 5, None])
def test_a_text_of_another_length_or_type_does_not_decode(text):
    with pytest.raises(m.WireError, match="not a wbsp message: Expected `str`"):
        m.decode(m.FromWorker, msgspec.msgpack.encode(["Ask", text, b""]))


LONG = "x" * 5000


@pytest.mark.parametrize("kind, message", [
    (m.FromWorker, m.Join([TensorSpec(LONG, (4,))])),
    (m.FromWorker, m.Join([TensorSpec("x", (4,) * 33)])),
    (m.FromWorker, m.Join([TensorSpec("x", (-4,))])),
    (m.FromWorker, m.Join([TensorSpec("x", (1 << 62,))])),
    (m.FromWorker, m.Join([], LONG)),
    (m.FromWorker, m.Join([], "", [LayerState(LONG, "", (0.0, 0.0, 0.0))])),
    (m.FromWorker, m.Join([], "", [LayerState("", "", (0.0, math.inf, math.nan))])),
    (m.FromWorker, m.Join([], "", (STATES + 1) * [LayerState("", "", (0.0, 0.0, 0.0))])),
    (m.FromWorker, m.Hello(m.PROTOCOL, -(1 << 63), {})),
    (m.FromWorker, m.Hello(m.PROTOCOL, 1, {str(i): "" for i in range(1000)})),
    (m.FromWorker, m.Leaving(LONG, True, None)),
    (m.FromWorker, m.Leaving("", True, Report(steps=1 << 62))),
    (m.FromWorker, m.Kept(AnsweredWork(0, 0, 1, 1, 0.1, 0, {LONG: 1}), 0, 5)),
    (m.FromWorker, m.Kept(AnsweredWork(0, 0, 1, 1, 0.1, 0, {str(i): 1 for i in range(65)}), 0, 5)),
    (m.FromWorker, m.Follow(m.PROTOCOL, {}, -5)),
    (m.FromWorker, m.Follow(m.PROTOCOL, {}, 65536)),
    (m.FromWorker, m.Ask(LONG)),
    (m.FromServer, m.Refused(LONG)),
    (s.FromShard, s.Misuse(1, LONG)),
])
def test_a_message_beyond_the_bounds_is_refused_in_a_short_line(kind, message):
    with pytest.raises(m.WireError) as error:
        m.decode(kind, m.encode(message))
    assert len(str(error.value)) < 200


def test_nesting_without_end_is_refused():
    for nest in (b"\x91", b"\x81"):
        with pytest.raises(m.WireError):
            m.decode(m.FromWorker, nest * 100_000)


def test_a_message_of_the_largest_chunk_passes_the_limit():
    header = m.encode(m.Update(Push(*[2**31] * 5, 1e300), 2**32, 2**33))
    assert len(header) + np.empty(m.CHUNK, np.float32).nbytes < m.MAX_MESSAGE
