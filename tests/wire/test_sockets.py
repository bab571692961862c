"""Addresses, tokens and binding."""

import socket
import time

import pytest
import zmq

from wbsp.environment import read_token
from wbsp.process.host import Clock, Host
from wbsp.wire.addresses import endpoint, is_loopback, plain_address, split_address
from wbsp.wire.sockets import ServerSocket, derive_keys, worker_socket


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "192.0.2.1", "::", "some.host"])
def test_an_open_address_needs_a_token(host):
    with pytest.raises(ValueError) as caught:
        ServerSocket(host, 2606)
    text = str(caught.value)
    assert text.startswith(f"refusing to listen on {host} without a token") and "\n" not in text
    assert "--token_file" in text and "--host=localhost" in text


def test_with_a_token_any_address_may_be_bound():
    server = ServerSocket("0.0.0.0", 0, b"a long enough secret")
    try:
        assert server.socket.curve_server and server.port > 0
    finally:
        server.close()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "localhost.", "127.0.0.1", "127.8.8.8",
                                  "::1", "[::1]", "::ffff:127.0.0.1"])
def test_hosts_of_the_loopback_interface_are_recognized(host):
    assert is_loopback(host)


def test_a_taken_port_is_named():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OSError) as caught:
            ServerSocket("localhost", port)
    text = str(caught.value)
    assert f"localhost:{port}" in text and "another --port_base" in text and "\n" not in text


def test_the_port_is_free_after_close():
    server = ServerSocket("localhost", 0)
    server.close()
    ServerSocket("localhost", server.port).close()


def test_a_short_token_is_refused(tmp_path):
    path = tmp_path / "token"
    path.write_text("0123456789abcde\n")
    with pytest.raises(ValueError, match=r"token holds 15 bytes; at least 16 are needed: openssl"):
        read_token(str(path))
    path.write_text("0123456789abcdef\n")
    assert read_token(str(path)) == b"0123456789abcdef"


def test_a_missing_token_file_is_named(tmp_path):
    with pytest.raises(OSError, match="absent"):
        read_token(str(tmp_path / "absent"))


def test_keys_are_the_tokens_alone():
    keys = derive_keys(b"a long enough secret")
    assert keys == derive_keys(b"a long enough secret")
    assert not set(keys) & set(derive_keys(b"another long secret!"))
    assert len(set(keys)) == 4
    assert zmq.curve_public(keys.server_secret) == keys.server_public


@pytest.mark.parametrize("address, parts", [
    ("localhost:2606", ("localhost", 2606)), ("10.0.0.7:1", ("10.0.0.7", 1)),
    ("[::1]:65535", ("[::1]", 65535))])
def test_an_address_is_split_into_host_and_port(address, parts):
    assert split_address(address) == parts


@pytest.mark.parametrize("address", [
    "", "localhost", ":2606", "localhost:", "localhost:port", "localhost:0", "localhost:65536",
    "localhost:-1", "localhost:2606/", "http://localhost:2606", "localhost: 2606", "localhost:²"])
def test_a_bad_address_is_one_clear_line(address):
    with pytest.raises(ValueError) as caught:
        split_address(address)
    assert str(caught.value) == (f"address {address!r} is not host:port, for example "
                                 "localhost:2606")


def test_a_host_and_a_port_make_an_endpoint():
    assert endpoint("localhost", 2606) == "tcp://127.0.0.1:2606"
    assert endpoint("::1", 2606) == endpoint("[::1]", 2606) == "tcp://[::1]:2606"


@pytest.mark.parametrize(("text", "plain"), [
    ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("[::ffff:10.0.0.1]", "10.0.0.1"),
    ("0:0:0:0:0:FFFF:0A00:0001", "10.0.0.1"), ("[::1]", "::1"), ("0::1", "::1"),
    ("fe80::1%eth0", "fe80::1%eth0"), ("some.host", "some.host"), ("", "")])
def test_an_address_has_one_plain_form(text, plain):
    assert plain_address(text) == plain


def test_the_server_listens_on_ipv6_loopback():
    try:
        server = ServerSocket("::1", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    context = zmq.Context()
    worker = worker_socket(context, ["::1"], b"identity")
    try:
        worker.connect(endpoint("::1", server.port))
        worker.send(b"hello")
        assert server.socket.poll(10_000)
        assert server.socket.recv_multipart() == [b"identity", b"hello"]
    finally:
        context.destroy(0)
        server.close()


def refused(server: ServerSocket, now: list[float], *tokens: bytes | None) -> list[str]:
    """The reasons that the server counts for processes with these tokens, one after the other."""
    context = zmq.Context()
    for token in tokens:
        one = worker_socket(context, ["127.0.0.1"], b"worker", token)
        monitor = one.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        one.connect(f"tcp://127.0.0.1:{server.port}")
        assert monitor.poll(20_000)
        one.disable_monitor()
        monitor.close(0)
        one.close(0)
    context.destroy(0)
    found, end = [], time.monotonic() + (10.0 if None in tokens[-1:] else 1.0)
    while not found and time.monotonic() < end:
        time.sleep(0.05)
        found = list(server.watch())
        now[0] += 1.0  # what may be forgiven is remembered for 5 s
    return found


@pytest.fixture
def open_server(tmp_path):
    path, now = tmp_path / "token", [0.0]
    path.write_text("a long enough secret")
    server = ServerSocket("0.0.0.0", 0, read_token(str(path)),
                          on=Host(clock=Clock(monotonic=lambda: now[0])))
    yield server, now
    server.close()


def test_a_process_without_the_token_is_counted(open_server, tmp_path):
    (reason,) = refused(*open_server, None)
    assert reason.startswith(f"a peer that does not speak the protocol or know the token of "
                             f"{tmp_path / 'token'}")


def test_a_process_that_finds_the_token_later_is_admitted(open_server):
    assert refused(*open_server, None, b"a long enough secret") == []
