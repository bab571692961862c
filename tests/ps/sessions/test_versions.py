"""The files of versions, which a server sends in parts to processes that know their words."""

from dataclasses import replace

import pytest

from wbsp.process.host import HOST, Clock
from wbsp.ps.sessions import versions as module
from wbsp.ps.sessions.handlers import Peer
from wbsp.ps.sessions.versions import Versions
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.reading import ReadVersion, VersionPart

NAMES = "version-7.safetensors", "fit-1.safetensors"


class Socket:
    """A server's socket, which records messages and receivers, at a time that a test sets."""

    def __init__(self):
        self.now, self.sent = 10.0, []
        self.on = replace(HOST, clock=Clock(lambda: self.now))

    def reaches(self, identity, message):
        self.sent.append((identity, m.decode(m.FromServer, message)))
        return True


@pytest.fixture
def socket():
    return Socket()


@pytest.fixture
def versions(socket, tmp_path):
    for name in (*NAMES, "checkpoint.safetensors", "version-8.safetensors"):
        (tmp_path / name).write_bytes(name.encode())
    made = Versions(socket, tmp_path)
    yield made
    made.close()


def ask(versions, name, offset=0, who=b"a"):
    versions.asked(Peer(who, None), ReadVersion(name, offset))


def serve(versions):
    """Begin to read the next part, if it is due, and send it."""
    versions.serve()
    if versions._reading is not None:
        versions._reading[1].exception()
        versions.serve()


def test_a_version_is_read_with_its_word_alone(versions, socket, tmp_path):
    words = [versions.word_for(name) for name in NAMES]
    for word, name in zip(words, NAMES, strict=True):
        ask(versions, word, 3)
        serve(versions)
        assert socket.sent.pop()[1] == VersionPart(len(name), 3, name.encode()[3:])
        socket.now += 1
    word = words[0].partition("-")[0]
    for asked in (NAMES[0], f"-{NAMES[0]}", f"{word}-version-8.safetensors", f"{word}-{NAMES[1]}",
                  f"{32 * '0'}-{NAMES[0]}", Versions(socket, tmp_path).word_for(NAMES[0]),
                  versions.word_for("checkpoint.safetensors"), f"{words[0]}\n", f"../{words[0]}",
                  ""):
        ask(versions, asked)
        assert socket.sent.pop()[1] == VersionPart(0, 0, b""), asked
    (tmp_path / NAMES[0]).unlink()
    ask(versions, words[0])
    serve(versions)
    assert socket.sent.pop()[1] == VersionPart(0, 0, b""), "it is gone"


def test_parts_are_sent_after_workers_messages(versions, socket):
    word = versions.word_for(NAMES[0])
    ask(versions, word)
    serve(versions)
    ask(versions, word)
    versions.arrived()
    socket.now += module._PAUSE
    serve(versions)
    assert len(socket.sent) == 1, "a push is being received"
    socket.now += module._MOST_PAUSE
    serve(versions)
    assert len(socket.sent) == 2, "but a reader does not wait for ever"
    ask(versions, word)
    socket.now += module._PAUSE
    serve(versions)
    assert len(socket.sent) == 3, "no message has arrived since"


def test_processes_take_turns_and_only_their_newest_request_counts(versions, socket):
    word = versions.word_for(NAMES[0])
    for offset, who in ((1, b"a"), (1, b"b"), (2, b"a")):
        ask(versions, word, offset, who)
    for _ in range(3):
        socket.now += 1
        serve(versions)
    assert [(who, part.offset) for who, part in socket.sent] == [(b"b", 1), (b"a", 2)]
