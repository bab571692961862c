"""Who hands out the files of a run, and whoever asks for them, right or wrong."""

import contextlib
import json
import os
import socket
import threading
import time

import psutil
import pytest
import zmq
from hostile_peer import Peer, RawPeer
from jobs import free_port, until
from watch_page import file_processes

from wbsp.ps import file_server as file_process
from wbsp.ps.file_server import MOST, Folder, RunFiles
from wbsp.runlog.folder import SECRET, write_settings
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.watch import Have, News, Read

LINE = b'{"t":1.0,"kind":"x"}\n'


@pytest.fixture
def run(tmp_path):
    """A run's folder, and what hands it out."""
    (tmp_path / "run.json").write_bytes(b"{}\n")
    (tmp_path / "events.jsonl").write_bytes(2 * LINE)
    folder = Folder(str(tmp_path))
    yield tmp_path, folder
    folder.close()


def had(pieces):
    """What is there at the other end, once it has these."""
    return [Have(piece.name, piece.file, piece.offset + len(piece.data)) for piece in pieces]


def data(found):
    pieces, more = found
    assert not more
    return {piece.name: piece.data for piece in pieces}


def test_new_data_is_handed_out_once(run):
    path, folder = run
    pieces, more = folder.news([])
    assert [(one.name, one.data) for one in pieces] == [("run.json", b"{}\n"),
                                                        ("events.jsonl", 2 * LINE)]
    assert not more and folder.news(had(pieces)) == ([], False)
    with open(path / "events.jsonl", "ab") as file:
        file.write(LINE + LINE[:5])
    assert data(folder.news(had(pieces))) == {"events.jsonl": LINE}, "without the torn line"
    (path / "new").write_bytes(b'{"epoch": 2}\n')
    os.replace(path / "new", path / "run.json")
    (path / "new").write_bytes(LINE)
    os.replace(path / "new", path / "events.jsonl")
    found = folder.news(had(pieces))
    assert data(found) == {"run.json": b'{"epoch": 2}\n', "events.jsonl": LINE}
    assert {piece.offset for piece in found[0]} == {0}


def test_the_run_s_secret_is_not_handed_out(run):
    path, folder = run
    with pytest.MonkeyPatch.context() as patch:
        for epoch in (1, 2):
            write_settings(path, {"id": "ab12", SECRET: "5ec2e7", "epoch": epoch})
            pieces, more = folder.news([])
            settings = next(one for one in pieces if one.name == "run.json")
            assert json.loads(settings.data) == {"id": "ab12", "epoch": epoch}
            assert settings.size == len(settings.data)
            assert folder.news(had(pieces)) == ([], False)
        patch.setattr(file_process, "MOST", 10)  # bytes at a time
        data, have = b"", []
        for _ in range(20):
            piece = folder.news(have)[0][0]
            assert piece.name == "run.json"
            data += piece.data
            have = [Have(piece.name, piece.file, piece.offset + len(piece.data))]
            if len(data) >= piece.size:
                break
        assert json.loads(data) == {"id": "ab12", "epoch": 2}


def test_a_port_that_is_taken_is_said_and_the_run_ends_as_well(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        files = RunFiles(tmp_path, ("ab12", 1), "localhost", taken.getsockname()[1], None)
        problem = until(lambda: files.at().problem, "the process to say what is wrong")
        assert "cannot listen on localhost" in problem and "another --watch_port" in problem
        files.close()


def test_an_answer_is_not_long(run):
    path, folder = run
    (path / "events.jsonl").write_bytes(20_000 * LINE)
    (path / "summary.json").write_bytes(b"{}")
    got, have, answers = {}, {}, 0
    while True:
        pieces, more = folder.news(list(have.values()))
        assert sum(len(piece.data) for piece in pieces) <= MOST
        for piece in pieces:
            assert piece.offset == len(got.get(piece.name, b""))
            got[piece.name] = got.get(piece.name, b"") + piece.data
        have |= {one.name: one for one in had(pieces)}
        answers += 1
        if not more:
            break
    assert got["events.jsonl"] == 20_000 * LINE and got["summary.json"] == b"{}"
    assert answers == 20_000 * len(LINE) // MOST + 1


def test_no_other_file_is_handed_out(run, tmp_path_factory):
    path, folder = run
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_bytes(b"secret\n")
    for name in ("checkpoint.safetensors", "token", ".server", "events_wk1.jsonl.bak",
                 "events_wk٣.jsonl", "events_wkx.jsonl", "run.json\n", "xrun.json", "runxjson"):
        (path / name).write_bytes(b"secret\n")
    (path / "events_wk1.jsonl").symlink_to(secret)
    os.mkfifo(path / "events_wk2.jsonl")  # nobody writes to it
    (path / "events_wk3.jsonl").mkdir()
    (path / "events_wk4.jsonl").write_bytes(LINE)
    (path / "summary.json").symlink_to("/dev/zero")
    assert data(folder.news([])) == {"run.json": b"{}\n", "events.jsonl": 2 * LINE,
                                     "events_wk4.jsonl": LINE}


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "events.jsonl", "", "\0", "x" * 9999])
@pytest.mark.parametrize("size", [-1, 0, 1 << 62, -(1 << 62)])
def test_a_wrong_claim_of_the_watcher_changes_nothing(run, name, size):
    path, folder = run
    inode = str((path / "events.jsonl").stat().st_ino)
    found = data(folder.news([Have(name, inode, size)] * 3))
    assert found == {"run.json": b"{}\n", "events.jsonl": 2 * LINE}


class Asker(Peer):
    """A peer of the process that hands out files."""

    def news(self, *have):
        self.send(Read(list(have)))
        assert self._socket.poll(30_000), "no answer"
        return m.decode(News, self._socket.recv_multipart()[0])


def where(server):
    """Address of what hands out this server's files."""
    with Peer(server.address) as peer:
        def asked():
            peer.send(m.Watch(m.PROTOCOL))
            return peer.hears(m.FilesAt).port
        return f"localhost:{until(asked, 'the files')}"


def wrong(port, end):
    """Messages that no watcher sends, and some that one sends, by one who reads no answer."""
    many = m.encode(Read(9000 * [Have("events.jsonl", "1", 0)]))
    with zmq.Context() as context:
        while time.monotonic() < end:
            peer = context.socket(zmq.DEALER)
            peer.linger, peer.rcvhwm, peer.sndhwm = 0, 1, 100
            peer.connect(f"tcp://127.0.0.1:{port}")
            for data in (b"", b"\xdd\xff\xff\xff\xff", bytes(1 << 20), m.encode(m.Goodbye()),
                         m.encode(Read([]))[:-1] + b"\xdd\x7f\xff\xff\xff",
                         *9 * [many],
                         *200 * [m.encode(Read([]))], many):
                with contextlib.suppress(zmq.Again):
                    peer.send_multipart([data], zmq.NOBLOCK)
            with contextlib.suppress(zmq.Again):
                peer.send_multipart(5 * [m.encode(Read([]))], zmq.NOBLOCK)
            time.sleep(0.02)
            peer.close(0)


def endless(port, end):
    """A message without an end, again and again."""
    while time.monotonic() < end:
        with RawPeer(port) as peer, contextlib.suppress(OSError):
            while time.monotonic() < end:
                peer.part(1 << 17)


def crowd(port, end):
    """More connections than anybody needs."""
    with contextlib.ExitStack() as stack:
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                stack.enter_context(RawPeer(port))


def test_a_hostile_crowd_costs_neither_memory_nor_the_run(jobs):
    server = jobs.server("--check_period=0.1").listens()
    for worker in range(2):
        jobs.integer_worker(server.address, worker, steps=10**6, seconds=0.01, stop_when_told=True)
    until(lambda: server.events("commit"), "versions")
    address = where(server)
    [process] = file_processes(server)
    with Asker(address) as asker:
        asker.news()
        before, commits = process.memory_info().rss, len(server.events("commit"))
        servers = psutil.Process(server.process.pid).memory_info().rss
        end = time.monotonic() + 2.0
        threads = [threading.Thread(target=one, args=(int(address.rpartition(":")[2]), end))
                   for one in (wrong, endless, crowd)]
        for thread in threads:
            thread.start()
        peak = before
        while any(thread.is_alive() for thread in threads):
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.01)
        for thread in threads:
            thread.join()
    with Asker(address) as asker:  # the crowd may have crowded out the one before
        assert {piece.name for piece in asker.news().pieces} >= {"run.json", "events.jsonl"}
    # on a busy machine it notices an endless message later
    assert peak - before < 100e6, f"{(peak - before) / 1e6:.0f} MB"
    assert psutil.Process(server.process.pid).memory_info().rss - servers < 20e6
    assert len(server.events("commit")) > commits
    (jobs.folder / "go").touch()
    server.ends_well()
    assert not process.is_running()
    assert server.events("malformed") == []


def test_a_process_that_asks_for_where_the_files_are_again_and_again_starts_one_process(jobs):
    server = jobs.server().listens()
    with Peer(server.address) as peer:
        for _ in range(1000):
            peer.send(m.Watch(m.PROTOCOL))
        address = where(server)
        assert len(file_processes(server)) == 1
        assert where(server) == address
    [process] = file_processes(server)
    server.kill()
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE,
          "the process to end with its server", 30)


def test_a_process_that_no_process_asks_ends_and_another_one_is_started(jobs):
    port = free_port()
    code = ("import runpy, sys, wbsp.ps.file_server as f; f.timeouts.FILES_AGAIN = 0.1;"
            "f._COMMAND = ['-c', 'import sys, wbsp.ps.file_server as p; "
            "p.timeouts.FILES_IDLE = 0.3; sys.exit(p.main())']; sys.argv[0] = 'wbsp.ps';"
            "runpy.run_module('wbsp.ps', run_name='__main__', alter_sys=True)")
    server = jobs.start("server", "-c", code, "--worker_num=1", f"--port_base={port}",
                        "--host=localhost")
    server.until("listening on port")
    server.address = f"localhost:{port}"
    first = where(server)
    process = psutil.Process(server.process.pid)
    [child] = process.children()
    until(lambda: child.status() == psutil.STATUS_ZOMBIE, "the process to end", 30)
    with Asker(where(server)) as asker:
        assert asker.news().server == "lives"
    assert first and [one.pid for one in process.children()] != [child.pid]
    server.signal(2)
    assert server.ends(30) == 130

