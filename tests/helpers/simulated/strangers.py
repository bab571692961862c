"""Strangers in a simulated network: processes that know no secret, and send any message.

Their messages are made from the types of the messages themselves, so that a new message, or a new
field, is forged from the day on which it exists.
"""

from __future__ import annotations

import contextlib
import random
from functools import cache

import msgspec
import zmq
from msgspec import inspect

from simulated.plan import PORT
from wbsp.wire.messages import codec as m

# What a stranger would like to have printed as if it were another line.
LINE = "\n[    1.0s] worker 0: forged\x1b[2J"
_TEXTS = "", "x", LINE, "../run.json", "x\x00y", "\u202ey\ud7ff"
_FLOATS = (0.0, 0.5, -1.0, 3.4e38, -1e300, 1e308, float("nan"), float("inf"), float("-inf"))
_MESSAGES, _SLOWER, _MOST = 120, 0.1, 400  # of a stranger; how fast it is after those; in all


# The last types of a union, in the order with which the seeds of `test_found.py` were found.
_LAST = ["AskVersion", "AskPast", "VersionAt", "Evaluated", "Noted", "AskFrozen", "FrozenPart",
         "ReadVersion", "VersionPart"]


@cache
def _kinds(union):
    """Return the types of all messages in a union of them; claims, which must be proven, more
    often.
    """
    def place(kind):
        return _LAST.index(kind.__name__) + 1 if kind.__name__ in _LAST else 0
    return [kind for kind in sorted(union.__args__, key=place)
            for _ in range(4 if "proof" in kind.__struct_fields__ else 1)]


@cache
def _shape(kind):
    return inspect.type_info(kind)


class Forger:
    """Make messages: valid ones that prove nothing, and some that do not decode.

    Attributes:
        known: field -> values that would be right, or nearly.
    """

    def __init__(self, draw: random.Random):
        self._draw, self.known = draw, {}

    def message(self, union):
        """Return the message's parts, as a stranger would send them."""
        draw = self._draw
        kind = draw.choice(_kinds(union))
        if draw.random() < 0.03:
            return [draw.randbytes(draw.choice([0, 1, 40, 3000]))]
        frames = [msgspec.msgpack.encode(self._made(_shape(kind), ""))]
        if draw.random() < (0.8 if "offset" in kind.__struct_fields__ else 0.03):
            frames.append(draw.randbytes(draw.choice([0, 3, 4, 48, 48, 64, 4096, 100_000])))
        return frames

    def _made(self, shape, name):
        draw = self._draw
        known = self.known.get(name)
        if known and draw.random() < 0.85:
            return draw.choice(known)
        match shape:
            case inspect.StructType():
                fields = [self._made(field.type, field.encode_name) for field in shape.fields]
                if not shape.array_like:
                    return {field.encode_name: value for field, value
                            in zip(shape.fields, fields, strict=True)}
                return [shape.tag, *fields] if shape.tag else fields
            case inspect.NamedTupleType():
                return [self._made(field.type, field.encode_name) for field in shape.fields]
            case inspect.DataclassType():
                return {field.encode_name: self._made(field.type, field.encode_name)
                        for field in shape.fields}
            case inspect.UnionType():
                return self._made(draw.choice(shape.types), name)
            case inspect.IntType():
                return self._number(shape)
            case inspect.FloatType():
                least, most = shape.ge, shape.le
                if None in (least, most) or draw.random() < 0.2:
                    return draw.choice(_FLOATS)
                return draw.choice([least, most, 0.0, draw.uniform(0.0, min(most, 1e3))])
            case inspect.StrType():
                return self._text(shape.max_length)
            case inspect.CustomType():  # a text of `wbsp.limits`
                return self._text(shape.cls.most)
            case inspect.BytesType():
                return draw.randbytes(draw.choice([0, 16, *8 * [32], 33]))
            case inspect.BoolType():
                return draw.random() < 0.5
            case inspect.LiteralType():
                return draw.choice(shape.values)
            case inspect.ListType() | inspect.VarTupleType():
                return [self._made(shape.item_type, "") for _ in range(self._length(shape))]
            case inspect.TupleType():
                return [self._made(one, "") for one in shape.item_types]
            case inspect.DictType():
                return {self._made(shape.key_type, ""): self._made(shape.value_type, "")
                        for _ in range(self._length(shape))}
            case _:
                return None

    def _length(self, shape):
        """Of a list; now and then one longer than it may be, or long."""
        most = 300 if shape.max_length is None else min(shape.max_length + 1, 300)
        return self._draw.choice([0, 1, 1, 2, 3]) if self._draw.random() < 0.97 else most

    def _number(self, shape):
        draw = self._draw
        least = shape.ge if shape.ge is not None else -(1 << 63)
        most = shape.le if shape.le is not None else (
            shape.lt - 1 if shape.lt is not None else (1 << 63) - 1)
        if draw.random() < 0.05:
            return draw.choice([max(least - 1, -(1 << 63)), min(most + 1, (1 << 64) - 1)])
        return draw.choice([least, most, most - 1, min(max(draw.randint(0, 4), least), most),
                            min(max(1 << draw.randint(0, 62), least), most)])

    def _text(self, most):
        draw = self._draw
        if draw.random() < 0.95:
            return draw.choice(_TEXTS)
        most = min(most, 70_000)
        return "x" * (most + draw.choice([0, 1]))


class Stranger:
    """A stranger that sends to all servers and shards, and answers their messages.

    It knows what every worker of the run knows: the run's id, and its epoch. It takes no free
    index: a process that passes for a worker is one.
    """

    def __init__(self, cluster, process, draw):
        self._cluster, self._process, self._draw = cluster, process, draw
        self._forger = Forger(draw)
        self._sockets = {}  # where it leads -> socket
        self._said = {}  # where -> its newest message there
        self._answers = []  # its next message: where, parts, how often

    def run(self):
        draw, process = self._draw, self._process
        context = process.host.network.context()
        names = [one.name for one in self._cluster.servers] + [
            f"s{index}" for index in range(self._cluster.plan.shards)]
        for name in names:
            socket = self._sockets[name] = context.socket(zmq.DEALER)
            socket.routing_id = draw.randbytes(16)
            # it has the token, or the run has none
            socket.curve_serverkey = self._cluster.curve
            socket.connect(f"tcp://{name}:{PORT}")
        pace = draw.choice([0.002, 0.01, 0.05])
        for said in range(_MOST):
            process.sleep(draw.expovariate(1 / pace) if said < _MESSAGES else _SLOWER)
            self._learn()
            for name in names:
                self._hear(name)
            if draw.random() < 0.5:
                self._say(*self._something(draw.choice(names)))
            elif self._answers:
                self._say(*self._answers.pop(draw.randrange(len(self._answers))))
        process.sleep(1e9)

    def _something(self, name):
        draw = self._draw
        union = m.ToShard if name[0] == "s" and name[1:].isdigit() else m.FromWorker
        if draw.random() < 0.1:  # for another one than it is sent to
            union = draw.choice([m.ToShard, m.FromWorker, m.FromServer, m.FromShard])
        return name, self._forger.message(union), 60 if draw.random() < 0.03 else 1

    def _say(self, name, frames, times=1):
        if self._is_served(frames):
            return
        socket, self._said[name] = self._sockets[name], frames
        for _ in range(times):
            with contextlib.suppress(zmq.Again):
                socket.send_multipart(frames)
            if times > 1:
                self._process.sleep(0.001)

    def _learn(self):
        """Learn what all know of the run by now."""
        cluster, known = self._cluster, self._forger.known
        known["protocol"], known["port"] = [m.PROTOCOL], [PORT]
        known["socket"] = [""]
        workers = cluster.plan.workers
        known["worker"] = [*range(workers), *range(-1, workers + 1)]
        known["first"] = known["kept"] = [0]
        settings = cluster.laws.settings
        if settings:
            epoch = settings.get("epoch", 0)
            known["run"] = [settings["id"]]
            known["epoch"] = [epoch, epoch, epoch, epoch + 1, epoch + 2, 1 << 53]
            known["rank"] = [0, 4 * epoch, 4 * epoch + 7, 1 << 41]

    def _hear(self, name):
        """Take what was answered: nonces and proofs are repeated, votes and copies agreed to, and
        what was refused is said again and again."""
        socket, known = self._sockets[name], self._forger.known
        for _ in range(8):
            if not socket.readable():
                return
            frames = socket.recv_multipart()
            with contextlib.suppress(m.WireError):
                answer = m.decode(m.FromServer, frames[0].buffer)
                if isinstance(answer, m.Challenge):
                    known["nonce"] = [answer.nonce, answer.claim]
                    known["proof"] = [*answer.proofs]
                elif isinstance(answer, m.Elect):
                    self._answers.append((name, [m.encode(m.Elected(answer.epoch))]))
                elif isinstance(answer, m.Following | m.Copy):
                    number = answer.number if isinstance(answer, m.Copy) else 0
                    self._answers.append((name, [m.encode(m.Held(number, 1))]))
                elif isinstance(answer, m.Refused) and self._draw.random() < 0.05:
                    self._answers.append((name, self._said[name], 60))

    def _is_served(self, frames):
        """What makes a worker of it, which is not played."""
        try:
            message = m.decode(m.FromWorker, frames[0])
        except m.WireError:
            return False
        return (isinstance(message, m.Hello) and message.protocol == m.PROTOCOL
                and (message.worker is None  # it asks for an index, and gets one
                     or 0 <= message.worker < self._cluster.plan.workers))
