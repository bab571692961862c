"""The page in a real browser, headless. Needs chromium; $CHROMIUM may name its program."""

import html
import os
import re
import shutil
import subprocess
import threading

import pytest
from made_runs import write_run

from wbsp.runlog.files import from_json
from wbsp.runlog.folder import write_settings
from wbsp.runlog.server import ServerLog
from wbsp.runlog.worker import WorkerLog
from wbsp.watch.__main__ import main
from wbsp.watch.run import WatchedRun
from wbsp.watch.server import Watch

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
pytest.importorskip("plotly", reason="the page needs plotly: pip install plotly")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="there is no chromium; install it, or name it in "
                       "$CHROMIUM"),
]


@pytest.fixture
def browse(tmp_path):
    """browse(address, flags...) is the page's HTML once it was drawn; nothing may go wrong."""
    def dump(address, *flags, seconds=20):
        done = subprocess.run(
            [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={tmp_path / 'browser'}", "--enable-logging=stderr", "--v=0",
             "--window-size=1366,900", f"--virtual-time-budget={1000 * seconds}", *flags,
             "--dump-dom", address], capture_output=True, text=True, timeout=120)
        said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        assert not said, said
        assert 'data-drawn="' in done.stdout, done.stderr[-2000:]
        return done.stdout
    return dump


@pytest.fixture
def report(tmp_path):
    """report(folder, ...) is the address of a report of these runs."""
    def make(*folders):
        path = tmp_path / "report.html"
        assert main([*map(str, folders), f"--out={path}"]) == 0
        return path.as_uri()
    return make


@pytest.fixture
def serve():
    servers = []

    def start(*folders):
        servers.append(Watch([WatchedRun(folder, f"run {i}") for i, folder in enumerate(folders)]))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1].address
    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def rows(page, table):
    """The cells of each row of the tables of that class or id: [(text, exact value or "")]."""
    found = []
    for body in re.findall(rf'<table (?:id|class)="{table}">.*?<tbody>(.*?)</tbody>', page,
                           re.DOTALL):
        for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL):
            cells = re.findall(r"<td([^>]*)>(.*?)</td>", row, re.DOTALL)
            found.append([(html.unescape(re.sub(r"<[^>]*>", "", text)),
                           (re.search(r'data-value="([^"]*)"', given) or ["", ""])[1])
                          for given, text in cells])
    return found


def exact(cell):
    return float(cell[1])


@pytest.mark.parametrize("live", [True, False], ids=["served", "report"])
def test_the_numbers_on_the_page_are_those_of_the_summary(browse, serve, report, bad_day, live):
    folders = [bad_day("ksync"), bad_day("pcc")]
    page = browse((serve if live else report)(*folders))
    summaries = [from_json((folder / "summary.json").read_bytes()) for folder in folders]
    for row, summary in zip(rows(page, "runs"), summaries, strict=True):
        assert row[1][0] == summary["reason"]
        assert [exact(cell) for cell in row[2:8]] == [
            summary["t"], summary["version"], *(summary["total"][name] for name in (
                "steps", "pushes", "rejected", "samples"))]
        assert [exact(cell) for cell in row[10:]] == [
            summary["staleness"]["mean"], summary["staleness"]["max"],
            summary["total"]["shares"]["compute"]]
    workers = [one for summary in summaries for one in summary["workers"].values()]
    for row, one in zip(rows(page, "workers"), workers, strict=True):
        assert [exact(cell) for cell in row[2:]] == [
            *(one[name] for name in ("steps", "pushes", "pulls", "rejected", "speed", "vs_best",
                                     "vs_own_best")), *one["shares"].values()]
    [late] = [row for row in rows(page, "rejections")]
    assert exact(late[0]) == summaries[0]["total"]["rejected"]
    assert page.count('<image ') == 2, "the lanes of both runs are pictures"
    lost = [row for row in rows(page, "events") if row[3][0].startswith("lost: ")]
    assert [row[1][0] for row in lost] == ["3", "3"]


def test_what_is_after_the_hash_chooses_the_window_and_the_theme(browse, report, bad_day):
    address = report(bad_day("wbsp"))
    page = browse(f"{address}#from=3&to=5&theme=dark")
    assert '<span id="window">3.00 to 5.00 s</span>' in page
    assert 'data-theme="dark"' in page
    assert re.search(r'<span id="window">0.00 to 1[12]', browse(address))


def test_a_run_that_goes_on_is_followed(browse, tmp_path):
    """Each time the page asks, a step and a version more are there; then the end."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_settings(folder, {"sync": "asp"})
    log, spans = ServerLog(folder, "asp", tensorboard=False), WorkerLog(folder, 0, "asp")
    log.event(1.0, "join", worker=0, version=0)
    log.event(1.0, "start", workers=[0])
    log.flush()

    class Growing(WatchedRun):
        def refresh(self):
            step = self.stamp
            if step < 5:
                t = 2.0 + step
                spans.span("compute", "compute", t - 1, t)
                log.event(t, "accept", worker=0, seq=step, base=step, version=step, steps=1,
                          samples=8, seconds=1.0, weight=1.0)
                log.event(t, "commit", version=step + 1, merged=1)
                log.flush()
            super().refresh()

    server = Watch([Growing(folder, "growing")])
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        page = browse(server.address, seconds=10)
    finally:
        server.shutdown()
        server.server_close()
        log.close()
        spans.close()
    [row] = rows(page, "runs")
    assert exact(row[4]) == 5 and row[1][0].startswith("running")


def test_hostile_text_is_shown_as_text(browse, report, tmp_path):
    hostile = "<img src=x onerror=\"document.title='bad'\"></script><script>bad()</script>"
    write_run(tmp_path / "a", "pcc", model=hostile)
    write_run(tmp_path / "b", "pcc", model="good", command=hostile)
    page = browse(report(tmp_path / "a", tmp_path / "b"))
    names = [row[0][0] for row in rows(page, "runs")]
    assert f"pcc model={hostile}" in names
    assert "<title>bad" not in page and "<img" not in page.partition('id="data"')[0]


def test_forty_workers_have_a_lane_each(browse, report, forty):
    page = browse(report(forty))
    assert len(rows(page, "workers")) == 40
    ticks = re.findall(r'<g class="ytick">.*?</g>', page, re.DOTALL)
    assert len(ticks) >= 40
