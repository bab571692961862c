"""A line for one question at a time, to a server that ends."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq
from jobs import until

from wbsp.wire.line import Line
from wbsp.wire.messages import codec as m
from wbsp.wire.sockets import ServerSocket

QUESTION = m.NextVersion(m.PROTOCOL, "", m.NONE, False)


@pytest.fixture
def line():
    """A line that is made, and its server; its next question is asked while the line is broken."""
    server, context = ServerSocket("localhost", 0), zmq.Context()
    line = Line(context, f"tcp://127.0.0.1:{server.port}", None)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(line.ask, QUESTION)
        identity, _ = server.socket.recv_multipart()
        until(lambda: line.made, "the connection to be seen")
        server.socket.send_multipart([identity, m.encode(m.VersionAt("run", version=1))])
        assert first.result().version == 1

    def ends(*messages):
        for message in messages:
            server.socket.send_multipart([identity, m.encode(message)])
        server.close(1.0)
        assert line.monitor.poll(30_000), "the break is seen"
        return line.ask(QUESTION)

    yield ends
    line.close()
    context.destroy(0)
    server.context.destroy(0)


def test_messages_of_an_ended_server_are_read(line):
    assert line(m.Alive(), m.Alive(), m.VersionAt("run", last=True, ends=True)).ends


def test_a_server_that_ended_without_a_message_is_an_error(line):
    with pytest.raises(ConnectionError, match="the connection to .* broke"):
        line(m.Alive())
