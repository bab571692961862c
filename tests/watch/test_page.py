"""The command, its server and its report, without a browser."""

import base64
import gzip
import html
import json
import re
import shutil
import socket
import threading
import urllib.error
import urllib.request
from collections import Counter
from http.client import HTTPConnection

import numpy as np
import pytest

from wbsp.runlog.folder import write_settings
from wbsp.runlog.reader import read_run
from wbsp.runlog.worker import WorkerLog
from wbsp.watch import page
from wbsp.watch.__main__ import main
from wbsp.watch.run import WatchedRun
from wbsp.watch.server import Watch

HOSTILE = "</script><script>alert(1)</script>{scripts} <b>&"


@pytest.fixture(autouse=True)
def small_plotly(request, monkeypatch):
    """A word in place of plotly's megabytes."""
    monkeypatch.setattr(page, "_plotly", lambda: "/* plotly */")


@pytest.fixture
def serve():
    """serve(folder, ...) serves these runs; closed after the test."""
    servers = []

    def start(*folders):
        runs = [WatchedRun(folder, f"run {index}") for index, folder in enumerate(folders)]
        servers.append(Watch(runs))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]
    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def get(server, path, **headers):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def unpacked(body):
    """Head and columns of an answer with spans."""
    head, _, _ = body.partition(b"\n")
    begin, head = len(head) + 1, json.loads(head)
    assert begin % 8 == 0
    columns = {}
    for name, dtype in (("t", "<f8"), ("seconds", "<f4"), ("lane", "<u4"), ("kind", "u1")):
        columns[name] = np.frombuffer(body, dtype, head["count"], begin)
        begin += columns[name].nbytes
    assert begin == len(body)
    return head, columns


def test_the_page_and_its_data_are_served(serve, bad_day):
    server = serve(bad_day("pcc"), bad_day("asp"))
    answer, body = get(server, "/")
    assert answer.status == 200 and b"/* plotly */" in body and b"{data}" not in body
    _, body = get(server, "/run/1")
    state = json.loads(body)
    assert state["summary"] == json.loads((bad_day("asp") / "summary.json").read_bytes())
    answer, body = get(server, f"/run/1?seen={state['stamp']}")
    assert (answer.status, body) == (204, b"")
    head, columns = unpacked(get(server, "/run/1/spans")[1])
    assert head["count"] == state["spans"]["count"] == len(columns["t"]) > 100
    rest, tail = unpacked(get(server, f"/run/1/spans?generation={head['generation']}&have=90")[1])
    assert (rest["from"], rest["count"]) == (90, head["count"] - 90)
    assert np.array_equal(tail["t"], columns["t"][90:])
    again, _ = unpacked(get(server, "/run/1/spans?generation=77&have=90")[1])
    assert again == head


@pytest.mark.parametrize("path", [
    "/run/2", "/run/0/events.jsonl", "/../run.json", "/run/../../etc/passwd", "//etc/passwd",
    "/run/%2e%2e/run.json", "/run/0/spans/", "/page.js", "/run/٣", "/run/0;ls", "/run/-1"])
def test_no_address_names_a_file(serve, bad_day, path):
    answer, body = get(serve(bad_day("pcc")), urllib.parse.quote(path, "/%;"))
    assert answer.status == 404 and b"sync" not in body


def samples(text):
    """{(name, labels): value} of Prometheus's text format."""
    found = {}
    for name, labels, value in re.findall(r"^(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        found[name, frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))] = float(value)
    return found


def test_metrics_have_the_numbers_of_the_summary(serve, bad_day):
    answer, body = get(serve(bad_day("pcc"), bad_day("asp")), "/metrics")
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain; version")
    found = samples(body.decode())
    for sync in ("pcc", "asp"):
        summary = json.loads((bad_day(sync) / "summary.json").read_bytes())
        run = {("run", str(bad_day(sync))), ("sync", sync)}
        assert found["wbsp_version", frozenset(run)] == summary["version"]
        assert found["wbsp_ended", frozenset(run)] == 1
        for worker, one in summary["workers"].items():
            of_it = run | {("worker", worker)}
            assert found["wbsp_worker_steps_total", frozenset(of_it)] == one["steps"]
            assert {phase: found["wbsp_worker_seconds_total", frozenset(of_it | {("phase", phase)})]
                    for phase in one["seconds"]} == one["seconds"]
            for reason, count in one["rejected_why"].items():
                reasons = frozenset(of_it | {("reason", reason)})
                assert found["wbsp_worker_rejected_total", reasons] == count


def test_the_metrics_are_prometheus_text(serve, written, tmp_path):
    parser = pytest.importorskip("prometheus_client.parser", reason="pip install prometheus_client")
    log, _ = written()
    log.event(1.0, "start", workers=[0])
    folder = tmp_path.rename(tmp_path.with_name('a "run"\\of\nmine'))
    server = Watch([WatchedRun(folder, "the run")])
    try:
        status, _, body = server.answer("/metrics")
    finally:
        server.server_close()
    families = {one.name: one for one in parser.text_string_to_metric_families(body.decode())}
    assert status == 200
    assert families["wbsp_version"].samples[0].labels["run"] == str(folder)
    assert all(one.type in ("gauge", "counter") and one.documentation for one in families.values())


@pytest.mark.parametrize("damage", ["removed", "damaged"])
def test_a_run_that_cannot_be_read_is_one_line_among_the_others(serve, bad_day, tmp_path, damage):
    folder = tmp_path / "bad"
    shutil.copytree(bad_day("pcc"), folder)
    server = serve(bad_day("asp"), folder)
    assert samples(get(server, "/metrics")[1].decode())["wbsp_readable", frozenset(
        {("run", str(folder)), ("sync", "pcc")})] == 1
    if damage == "removed":
        shutil.rmtree(folder)
    else:
        (folder / "summary.json").write_bytes(b"[" * 100_000)
    for _ in range(2):
        answer, body = get(server, "/metrics")
        found = samples(body.decode())
        assert answer.status == 200
        assert found["wbsp_readable", frozenset({("run", str(folder)), ("sync", "pcc")})] == 0
        assert found["wbsp_version", frozenset(
            {("run", str(bad_day("asp"))), ("sync", "asp")})] > 0
        assert re.search(rf"^# cannot read {folder}: ", body.decode(), re.MULTILINE)
    answer, body = get(server, "/run/1")
    assert answer.status == 500 and body.count(b"\n") == 1
    said = []
    server.read(said.append)
    assert len(said) == 1 and said[0].startswith("cannot read a run: ")


@pytest.mark.parametrize("query", ["seen=x", "have=1.5", "generation=%00"])
def test_numbers_must_be_whole(serve, bad_day, query):
    server = serve(bad_day("pcc"))
    assert get(server, f"/run/0?{query}")[0].status == 400
    assert get(server, "/run/0/spans?generation=0&have=-5")[0].status == 200
    assert get(server, f"/run/0/spans?generation=0&have={'9' * 90}")[0].status == 200


def test_only_this_machine_is_answered_under_its_own_name(serve, bad_day):
    server = serve(bad_day("pcc"))
    assert server.server_address[0] == "127.0.0.1"
    for host, status in [("evil.example", 403), ("", 403), ("[", 403), ("localhost:9", 200),
                         ("127.0.0.1", 200), ("127.0.0.1.evil.example", 403)]:
        assert get(server, "/", Host=host)[0].status == status, host
    request = urllib.request.Request(server.address, method="POST", data=b"x")
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(request, timeout=30)


def test_appended_lines_are_served(serve, written, tmp_path):
    log, _ = written()
    server = serve(tmp_path)
    state = json.loads(get(server, "/run/0")[1])
    assert state["spans"]["count"] == 0
    log.event(1.0, "start", workers=[0])
    spans = WorkerLog(tmp_path, 0, "pcc")
    spans.span("compute", "compute", 1.0, 2.0)
    spans.close()
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b'{"t":4.0,"kind":"com')
    state = json.loads(get(server, f"/run/0?seen={state['stamp']}")[1])
    assert (state["began"], state["spans"]["count"], state["workers"]) == (1.0, 1, [0])


def test_a_file_damaged_later_is_reported_and_the_page_continues(serve, written, tmp_path):
    log, _ = written()
    server = serve(tmp_path)
    assert get(server, "/run/0")[0].status == 200
    log.close()
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b"\0\0\0\n")
    answer, body = get(server, "/run/0")
    assert answer.status == 500 and b"events.jsonl, line 1 is damaged" in body
    assert get(server, "/")[0].status == 200


def data_of(report):
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>',
                     report.read_text(), re.DOTALL)
    return json.loads(text[1])


def test_a_report_holds_everything_and_loads_nothing(bad_day, tmp_path, capsys):
    report = tmp_path / "report.html"
    assert main([str(bad_day("pcc")), str(bad_day("asp")), f"--out={report}"]) == 0
    assert capsys.readouterr().out == f"{report}\n"
    data = data_of(report)
    assert not data["live"] and [run["name"] for run in data["runs"]] == ["pcc", "asp"]
    summary = json.loads((bad_day("asp") / "summary.json").read_bytes())
    assert data["states"][1]["summary"] == summary
    head, _ = unpacked(gzip.decompress(base64.b64decode(data["spans"][0])))
    assert head["count"] == data["states"][0]["spans"]["count"]
    text = report.read_text()
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy
    assert "unsafe-eval" not in policy and "http" not in policy
    assert not re.search(r'(?:src|href)\s*=\s*["\'](?!data:)', text)
    assert not re.search(r"https?://(?!www\.w3\.org)", text)


def test_a_trace_holds_the_lanes_and_events_of_one_run(bad_day, tmp_path, capsys):
    trace, one, other = tmp_path / "run.json", bad_day("pcc"), bad_day("asp")
    capsys.readouterr()  # of the simulations
    assert main([str(one), f"--trace={trace}"]) == 0
    assert capsys.readouterr().out == f"{trace}\n"
    kinds = Counter(event["ph"] for event in json.loads(trace.read_text())["traceEvents"])
    run = read_run(one)
    assert kinds["X"] == sum(map(len, run.spans.values())) and kinds["i"] == len(run.events)
    assert main([str(one), str(other), f"--trace={trace}"]) == 1
    error = capsys.readouterr().err
    assert "takes one run, and there are 2" in error and error.count("\n") == 1


def test_two_reports_of_the_same_files_are_the_same(bad_day, tmp_path):
    for name in ("a.html", "b.html"):
        assert main([str(bad_day("pcc")), f"--out={tmp_path / name}"]) == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_text_of_a_run_stays_text(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_settings(tmp_path / name, {"sync": "pcc", "command": HOSTILE,
                                         "model": HOSTILE + name})
    report = tmp_path / "report.html"
    assert main([str(tmp_path), f"--out={report}"]) == 0
    text = report.read_text()
    assert "<script>alert" not in text and text.count("<script>") == 5
    assert data_of(report)["states"][0]["settings"]["command"] == HOSTILE


@pytest.mark.parametrize("arguments, says", [
    (["missing"], "folder missing does not exist"),
    (["."], "holds no run"),
    (["run", "--out=no/such/folder/x.html"], "No such file or directory"),
    (["run", "--http=70000"], "--http=70000 is not a port"),
    (["damaged"], "events.jsonl, line 2 is damaged"),
    (["damaged_spans", "--out=x.html"], "events_wk0.jsonl, line 1 is damaged"),
    (["damaged_spans", "--trace=x.json"], "events_wk0.jsonl, line 1 is damaged"),
    (["run", "--trace=no/such/folder/x.json"], "No such file or directory"),
    (["damaged_summary"], "summary.json is damaged"),
    (["damaged_settings"], "run.json is damaged"),
    (["wrong_push"], "holds a push that no server wrote: invalid literal for int"),
    (["wrong_event"], "holds an event or a summary that no server wrote"),
    (["wrong_summary", "--out=x.html"], "holds an event or a summary that no server wrote"),
])
def test_bad_input_is_refused_in_one_line(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    if arguments != ["."]:
        for name in {"run", "damaged", "damaged_spans", arguments[0]} - {"missing"}:
            (tmp_path / name).mkdir()
            write_settings(tmp_path / name, {"sync": "pcc"})
        for path, text in {
                "damaged_summary/summary.json": '{"t"', "damaged_settings/run.json": '{"sync": ',
                "wrong_push/events.jsonl": '{"t":1,"kind":"accept","worker":"me"}\n',
                "wrong_event/events.jsonl": '{"t":1,"kind":"leave","worker":0}\n',
                "wrong_summary/summary.json": '{"workers": 3}'}.items():
            if (tmp_path / path).parent.exists():
                (tmp_path / path).write_text(text)
        (tmp_path / "damaged/events.jsonl").write_text('{"t":1,"kind":"x"}\n{"kind":"y"}\n')
        (tmp_path / "damaged_spans/events_wk0.jsonl").write_text(
            '{"t":1,"seconds":1,"lane":"compute","kind":"sleep"}\n')
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("watch: ") and says in printed.err
    assert printed.err.count("\n") == 1
    assert not list(tmp_path.glob("*.html"))


def test_a_taken_port_is_refused_in_one_line(bad_day, capsys):
    folder = bad_day("pcc")
    capsys.readouterr()  # of the simulation
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main([str(folder), f"--http={taken.getsockname()[1]}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("watch: ") and "--http" in error and error.count("\n") == 1


def test_without_plotly_one_line_names_the_installation(bad_day, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "plotly", None)
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    assert main([str(bad_day("pcc"))]) == 1
    assert "pip install plotly" in capsys.readouterr().err


def test_the_command_serves_until_it_is_interrupted(jobs, bad_day):
    job = jobs.start("watch", "-m", "wbsp.watch", bad_day("pcc"), bad_day("asp"))
    line = job.until("2 runs at http")
    address = re.search(r"http://127\.0\.0\.1:\d+/", line)[0]
    with urllib.request.urlopen(address, timeout=30) as answer:
        assert b"Plotly" in answer.read()
    job.signal(2)
    assert job.ends() == 0
    job.was_clean()
