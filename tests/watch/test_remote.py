"""Runs that are watched remotely: real servers, workers, and the page's process."""

import json
import re
import signal
import socket
import subprocess
import threading

import pytest
import zmq
from jobs import free_port, until
from server_and_standby import ServerAndStandby
from watch_page import Page, data_of, file_processes

from wbsp.runlog.worker import WorkerLog
from wbsp.watch import page, remote
from wbsp.watch.__main__ import main
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.watch import News, Piece

SECRET = "a secret of more than sixteen bytes"


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """This process is not long patient, keeps its mirrors in a folder of the test, and has a word
    in place of plotly's megabytes."""
    (tmp_path / "mirrors").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "mirrors"))
    monkeypatch.setattr("wbsp.timeouts.WATCH_FIRST", 0.5)
    monkeypatch.setattr(page, "_plotly", lambda: "/* plotly */")
    before = [(one, signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM)]
    yield
    for signum, handler in before:
        signal.signal(signum, handler)
    assert not list((tmp_path / "mirrors").iterdir())


def crew(jobs, address, *, workers=2, **plan):
    """Workers of a run that goes on until `go`."""
    plan = {"steps": 1_000_000, "seconds": 0.01, "stop_when_told": True, **plan}
    return [jobs.integer_worker(address, worker, **plan) for worker in range(workers)]


def pushes(state):
    return state["summary"]["total"]["pushes"]


def test_the_page_is_that_of_the_folder_and_continues_with_the_run(jobs, tmp_path, monkeypatch):
    """With a token, shards, and a process of the server's that is killed in between."""
    monkeypatch.setattr("wbsp.timeouts.WATCH_FIRST", 30.0)  # the file server has yet to start
    (tmp_path / "token").write_text(SECRET)
    token = f"--token_file={tmp_path / 'token'}"
    server = jobs.server(token, "--shards=2", "--check_period=0.2").listens()
    assert file_processes(server) == [], "nobody watches"
    workers = crew(jobs, server.address, token_file=str(tmp_path / "token"), hold_at=30)
    log = WorkerLog(server.folder, 0, "pcc")
    for number in range(5000):  # more than an answer holds
        log.span("compute", "compute", number, number + 1)
    log.close()
    for worker in workers:
        worker.until("step 30 done")

    def reports():
        """Of the server and of the folder."""
        monkeypatch.setenv("WBSP_TOKEN_FILE", str(tmp_path / "token"))
        for name, what in (("afar", server.address), ("folder", str(server.folder))):
            assert main([what, f"--out={tmp_path / name}.html"]) == 0
        return tmp_path / "afar.html", tmp_path / "folder.html"

    def same():  # unless a checkpoint came between the two
        afar, folder = (path.read_text() for path in reports())
        place = f"{server.address}, {'/'.join(server.folder.parts[-2:])}"
        return afar.replace(place, str(server.folder)) == folder and place in afar
    until(same, "two reports of the same files")
    [spans] = data_of(tmp_path / "afar.html")["spans"]
    assert json.loads(spans.partition(b"\n")[0])["count"] == 5000

    watched = Page(jobs, server.address, token)
    before = pushes(watched.state())
    assert before > 0  # what waits in the log's buffer comes later
    [process] = file_processes(server)
    process.kill()
    until(lambda: "showing older data" in watched.state()["trouble"], "the page to say so")
    assert pushes(watched.state()) == before
    until(lambda: not watched.state()["trouble"], "another process, and the page to go on")
    (tmp_path / "go").touch()
    until(lambda: watched.state()["ended"], "the run's end on the page")
    server.ends_well()
    for worker in workers:
        worker.ends_well()
    summary = json.loads((server.folder / "summary.json").read_bytes())
    assert watched.state()["summary"] == summary and watched.state()["trouble"] == ""
    watched.ends(signal.SIGINT)


def test_a_server_that_is_killed_and_started_again(jobs, tmp_path):
    """The page says that it is gone, shows what there was, and goes on when it is back."""
    port = free_port()
    server = jobs.server("--check_period=0.1", port=port).listens()
    workers = crew(jobs, server.address)
    workers[0].until("step 30 done")
    watched = Page(jobs, server.address)
    until(lambda: pushes(watched.state()) > 20, "pushes on the page")
    server.kill()
    until(lambda: "showing older data" in watched.state()["trouble"], "the page to say so")
    known = watched.state()
    assert pushes(known) > 20 and known["happenings"]["events"]
    again = jobs.server("--check_period=0.1", "--resume", port=port).listens()
    until(lambda: not watched.state()["trouble"], "the page to go on")
    until(lambda: "resume" in {one["kind"] for one in watched.state()["happenings"]["events"]},
          "the resumption on the page")
    (tmp_path / "go").touch()
    until(lambda: watched.state()["ended"], "the run's end on the page")
    again.ends_well()
    summary = json.loads((again.folder / "summary.json").read_bytes())
    assert watched.state()["summary"] == summary
    other = jobs.server(port=port).listens()
    until(lambda: "serves another run now (pcc/run-002)" in watched.state()["trouble"],
          "the page to say that this is another run", 30)
    assert watched.state()["summary"] == summary
    other.signal(signal.SIGINT)
    watched.ends(signal.SIGTERM)


def test_a_standby_that_takes_over_is_watched_on(jobs, tmp_path, capsys):
    pair = ServerAndStandby(jobs)
    assert main([pair.addresses[1]]) == 1
    assert "is a standby of the server" in capsys.readouterr().err
    pair.trains()
    watched = Page(jobs, ",".join(pair.addresses))
    until(lambda: pushes(watched.state()) > 20, "pushes on the page")
    pair.server.kill()
    pair.standby.until("taking over from the server")
    place = "run-standby/run-001"
    until(lambda: place in watched.state()["folder"], "the page to follow", 60)
    state = watched.state()
    assert state["trouble"] == "" and state["versions"]["t"][0] < 1, "what came before is there"
    assert "took_over" in {one["kind"] for one in state["happenings"]["events"]}
    pair.go()
    pair.ends(pair.standby)
    until(lambda: watched.state()["ended"], "the run's end on the page")
    summary = json.loads((pair.standby.folder / "summary.json").read_bytes())
    assert watched.state()["summary"] == summary
    watched.ends(signal.SIGINT)


def test_an_ended_server_does_not_wait_for_a_lost_worker(jobs, tmp_path):
    server = jobs.server("--check_period=0.1").listens()
    watched = Page(jobs, server.address)
    watched.job.kill()
    [process] = file_processes(server)
    (tmp_path / "go").touch()
    for worker in crew(jobs, server.address):
        worker.ends_well()
    server.ends_well(30)
    assert not process.is_running()
    for folder in watched.mirrors.iterdir():
        subprocess.run(["rm", "-r", folder], check=True)


@pytest.fixture
def liar():
    """liar(answer) is the address of a peer that sends `answer`(message) to each one, as a server
    of another release or an evil one might."""
    ended, context, threads = threading.Event(), zmq.Context(), []

    def start(answer):
        router = context.socket(zmq.ROUTER)
        port = router.bind_to_random_port("tcp://127.0.0.1")

        def run():
            while not ended.is_set():
                if router.poll(20):
                    who, data = router.recv_multipart()
                    if (said := answer(data, port)) is not None:
                        router.send_multipart([who, m.encode(said)])
            router.close(0)
        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return f"localhost:{port}"
    yield start
    ended.set()
    for thread in threads:
        thread.join()
    context.destroy(0)


def one_line(capsys, address, *flags):
    assert main([address, *flags]) == 1
    error = capsys.readouterr().err
    assert error.startswith("watch: ") and error.count("\n") == 1, error
    return error


def test_logs_of_several_servers_become_one(liar):
    """A standby's goes on where the server's ends; that of a server that comes back holds all."""
    def log(folder, epoch, data, offset=0, file="1", size=None):
        return News("ab12", folder, epoch, "lives", False, [
            Piece("events.jsonl", file, offset, size or offset + len(data), 10**18, data)])
    told = [log("run/run-001", 1, b"a\nb\nto", size=90), log("run-standby/run-001", 2, b"c\n"),
            log("run-standby/run-001", 2, b"d\n", 2), log("run/run-001", 3, b"a\nb\ne\n"),
            log("run/run-001", 3, b"f\n", file="2"), log("run/run-001", 2, b"older\n", 2)]
    found, answers = [], iter(told)
    address = liar(lambda data, port: m.FilesAt(port) if b"Watch" in data else next(answers))
    with remote.mirrored(address, None, threading.Event()) as mirror:
        for index in range(len(told) - 1):
            if index:
                mirror.first()
            found.append((mirror.folder / "events.jsonl").read_bytes())
    assert found == [b"a\nb\nto", b"a\nb\nc\n", b"a\nb\nc\nd\n", b"a\nb\ne\n", b"f\n"]


def test_an_older_server_gets_one_line(liar, monkeypatch, capsys):
    """It does not know the question, and refuses every other protocol."""
    monkeypatch.setattr("wbsp.timeouts.WATCH_ANSWER", 0.5)
    address = liar(lambda data, port: m.Refused("worker -1 has protocol -1")
                   if b"Hello" in data else None)
    assert "cannot be watched remotely: give the folder" in one_line(capsys, address)


@pytest.mark.parametrize("piece", [
    Piece("../evil", "1", 0, 4, 0, b"evil"), Piece("/tmp/evil", "1", 0, 4, 0, b"evil"),
    Piece("evil.jsonl", "1", 0, 4, 0, b"evil"), Piece("run.json", "1", 9, 12, 0, b"evil"),
    Piece("run.json", "1", -1, 12, 0, b"evil"), Piece("events.jsonl\n", "1", 0, 4, 0, b"evil")])
def test_a_server_cannot_write_another_file(liar, tmp_path, capsys, piece):
    address = liar(lambda data, port: m.FilesAt(port) if b"Watch" in data else News(
        "ab12", "pcc/run-001", 1, "lives", False, [piece]))
    assert re.search("the server sent a|not a wbsp message", one_line(capsys, address))
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]


def test_a_watcher_that_a_server_refuses_gets_one_line(jobs, tmp_path, monkeypatch, capsys):
    paths = {"": ""}
    for name in ("ours", "another"):
        paths[name] = tmp_path / name
        paths[name].write_text(f"{name}, of more than sixteen bytes")
    servers = {"": jobs.server().listens(),
               "ours": jobs.server(f"--token_file={paths['ours']}").listens()}
    for ours, theirs in [("ours", "another"), ("ours", ""), ("", "another")]:
        said = one_line(capsys, servers[ours].address, f"--token_file={paths[theirs]}")
        assert "it has another token (--token_file" in said
    monkeypatch.setattr(m, "PROTOCOL", m.PROTOCOL - 1)  # who watches is of an older release
    said = one_line(capsys, servers[""].address)
    assert f"has protocol {m.PROTOCOL}, the server" in said
    assert all(file_processes(server) == [] for server in servers.values())


def test_no_worker_there_gets_one_line(monkeypatch, capsys):
    monkeypatch.setattr("wbsp.timeouts.WATCH_ANSWER", 0.5)
    with socket.socket() as silent:  # takes connections, and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for address, says in [(f"localhost:{free_port()}", "no server answers at 127.0.0.1:"),
                              ("no.such.host.invalid:2606", "no.such.host.invalid is not known"),
                              (f"localhost:{silent.getsockname()[1]}", "no server answers"),
                              ("localhost:70000", "is not host:port")]:
            assert says in one_line(capsys, address)


def test_a_port_for_the_files_that_is_taken_is_said(jobs, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = jobs.server(f"--watch_port={taken.getsockname()[1]}").listens()
        assert "cannot listen on localhost" in one_line(capsys, server.address)
    server.was_clean()


def test_the_command_is_interrupted_while_it_waits(jobs):
    """Its folder goes, too."""
    (jobs.folder / "tmp").mkdir()
    job = jobs.start("watch", "-c", "import wbsp.watch.remote as r, wbsp.watch.__main__ as w, sys;"
                     "r.timeouts.WATCH_FIRST = 100; print('up', flush=True);"
                     f"sys.exit(w.main(['localhost:{free_port()}']))",
                     TMPDIR=str(jobs.folder / "tmp"))
    until(lambda: list((jobs.folder / "tmp").iterdir()), "the mirror's folder")
    job.signal(signal.SIGTERM)
    assert job.ends(30) == 0
    job.was_clean()
    assert not list((jobs.folder / "tmp").iterdir())


@pytest.mark.parametrize("text", ["\x1b[2Jgone", "one\nwatch: forged", "a\u2028b\u202e"])
def test_a_message_of_the_server_is_printed_as_one_line(text, capsys, tmp_path):
    """Whoever it is that listens there."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")

    def refuse():
        while router.poll(10_000):
            router.send_multipart([router.recv_multipart()[0], m.encode(m.Refused(text))])
            if over.wait(0.01):
                return
    over = threading.Event()
    thread = threading.Thread(target=refuse)
    thread.start()
    assert main([f"localhost:{port}", f"--out={tmp_path / 'x.html'}"]) != 0
    over.set()
    with zmq.Context() as other, other.socket(zmq.DEALER) as last:
        last.connect(f"tcp://127.0.0.1:{port}")  # the thread may wait for a question
        last.send(b"")
        thread.join()
    context.destroy(0)
    said = capsys.readouterr().err
    assert said.startswith("watch: ") and said.count("\n") == 1 and said[:-1].isprintable()
