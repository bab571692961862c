"""What a worker requests of its server: the bytes of each request and answer.

A further request has its behaviour tested here as well, through `wbsp.Worker` or `SyncCallback`.
"""

from typing import get_args

import pytest

from wbsp.wire.messages import codec as m
from wbsp.wire.messages.requests import Answers, Requests

# Processes with the same PROTOCOL must understand each other, in any release. So if
# that number is a release's: raise it with a further message here, and with a change of one.
BYTES = [
    (m.AskFrozen(1 << 20), b"\x92\xa9AskFrozen\xce\x00\x10\x00\x00"),
    (m.FrozenPart(1 << 20, b"\0\0\xc0?"),
     b"\x93\xaaFrozenPart\xce\x00\x10\x00\x00\xc4\x04\0\0\xc0?"),
    (m.AskVersion(4, True), b"\x93\xaaAskVersion\x04\xc3"),
    (m.AskPast(), b"\x91\xa7AskPast"),
    (m.VersionAt("ab12", 7, "version-7.safetensors", True, 4, 2),
     b"\x98\xa9VersionAt\xa4ab12\x07\xb5version-7.safetensors\xc3\x04\x02\xc2"),
]


def test_each_request_and_answer_is_covered():
    assert {type(message) for message, _ in BYTES} == {*get_args(Requests), *get_args(Answers)}


@pytest.mark.parametrize("message, data", BYTES, ids=lambda one: type(one).__name__)
def test_requests_and_answers_are_these_bytes(message, data):
    kind, other = m.FromWorker, m.FromServer
    if isinstance(message, Answers):
        kind, other = other, kind
    assert m.encode(message) == data and m.decode(kind, data) == message
    with pytest.raises(m.WireError, match="not a wbsp message"):
        m.decode(other, data)
