"""The page in a real browser, headless. Needs chromium; $CHROMIUM may name its program.

Opening a page costs seconds, most of them plotly's. So tests share pages, and stand in the order of
these; each says which page it looks at.
"""

import itertools
import json
import threading
import time

import pytest
from browser import PATIENCE, Browser, find_browser
from made_runs import made_of_site, write_run

from wbsp.runlog.files import from_json
from wbsp.runlog.folder import write_settings
from wbsp.runlog.server import ServerLog
from wbsp.runlog.worker import WorkerLog
from wbsp.watch.__main__ import main
from wbsp.watch.run import WatchedRun
from wbsp.watch.server import Watch

pytest.importorskip("plotly", reason="the page needs plotly: pip install plotly")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_browser() is None, reason="there is no chromium; install it, or name "
                       "it in the environment's CHROMIUM"),
]
HOSTILE = "<img src=x onerror=\"document.title='bad'\"></script><script>bad()</script>"
ROWS = """[...document.querySelectorAll(%s)].flatMap(table => [...table.tBodies[0].rows].map(
    row => [...row.cells].map(cell => [cell.textContent, cell.dataset.value || ""])))"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with Browser(find_browser(), tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(chromium):
    """A browser in whose page nothing may go wrong."""
    yield chromium
    assert chromium.trouble == []


@pytest.fixture(scope="module")
def days(bad_day):
    """Folders of two runs that end with summaries."""
    return [bad_day("ksync"), bad_day("pcc")]


@pytest.fixture(scope="module")
def report_of(tmp_path_factory):
    """report_of(folder, ...) is the address of a report of these runs."""
    def make(*folders):
        path = tmp_path_factory.mktemp("reports") / "report.html"
        assert main([*map(str, folders), f"--out={path}"]) == 0
        return path.as_uri()
    return make


@pytest.fixture(scope="module")
def report(report_of, days):
    """Address of a report of `days`."""
    return report_of(*days)


@pytest.fixture(scope="module")
def made(report_of, tmp_path_factory, forty):
    """Address of a report of two runs that are made up, with hostile words in their settings, and
    of one of forty workers; from second 5 to 6, and dark."""
    folder = tmp_path_factory.mktemp("made")
    write_run(folder / "a", "wbsp", model=HOSTILE)
    write_run(folder / "b", "pcc", model="good", command=HOSTILE)
    return report_of(folder / "a", folder / "b", forty) + "#from=5&to=6&theme=dark"


def look(browser, address):
    """Open a page, unless it is open."""
    if browser.address != address:
        browser.open(address)


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


def rows(browser, tables):
    """The cells of each row of the tables that a selector names: [text, exact value or ""]."""
    return browser.evaluate(ROWS % json.dumps(tables))


def exact(cell):
    return float(cell[1])


@pytest.mark.parametrize("live", [True, False], ids=["served", "report"])
def test_the_numbers_on_the_page_are_those_of_the_summary(browser, serve, report, days, live):
    look(browser, serve(*days) if live else report)
    browser.until("document.querySelectorAll('article').length == 2")
    summaries = [from_json((folder / "summary.json").read_bytes()) for folder in days]
    for row, summary in zip(rows(browser, "#runs"), summaries, strict=True):
        assert row[1][0] == summary["reason"]
        assert [exact(cell) for cell in row[2:8]] == [
            summary["t"], summary["version"], *(summary["total"][name] for name in (
                "steps", "pushes", "rejected", "samples"))]
        assert [exact(cell) for cell in row[11:]] == [
            summary["staleness"]["mean"], summary["staleness"]["max"],
            summary["total"]["shares"]["compute"]]
    workers = [one for summary in summaries for one in summary["workers"].values()]
    for row, one in zip(rows(browser, ".workers"), workers, strict=True):
        assert [exact(cell) for cell in row[2:]] == [
            *(one[name] for name in ("steps", "pushes", "pulls", "rejected", "speed", "vs_best",
                                     "vs_own_best")), *one["shares"].values()]
    [late] = rows(browser, ".rejections")
    assert exact(late[0]) == summaries[0]["total"]["rejected"]
    lost = [row for row in rows(browser, ".events") if row[3][0].startswith("lost: ")]
    assert [row[1][0] for row in lost] == ["3", "3"]


def test_a_report_makes_no_network_request(browser, report):
    look(browser, report)
    assert {one.partition(":")[0] for one in browser.requests} <= {"file", "data", "blob", "about"}
    assert [one for one in browser.requests if one.startswith("file:")] == [report]


def test_dragging_zooms_and_a_double_click_shows_the_whole_run(browser, report):
    look(browser, report)
    said = "document.getElementById('window').textContent"
    whole = browser.evaluate(said)
    box = browser.evaluate("""(() => {
        const lanes = document.querySelector(".lanes");
        lanes.scrollIntoView({block: "center"});
        const box = lanes.querySelector(".nsewdrag").getBoundingClientRect();
        return [box.left, box.top, box.width, box.height];
    })()""")
    left, top, width, height = box
    y = top + height / 2
    browser.mouse("mouseMoved", left + width / 4, y)
    assert browser.until("document.querySelector('.tip').textContent").startswith("worker ")
    browser.mouse("mousePressed", left + width / 4, y, buttons=1, clickCount=1)
    for part in (0.3, 0.4, 0.5):
        browser.mouse("mouseMoved", left + part * width, y, buttons=1)
    browser.mouse("mouseReleased", left + width / 2, y, clickCount=1)
    zoomed = browser.until(f"{said} != {json.dumps(whole)} && {said}")
    start, end = (float(word) for word in zoomed.removesuffix(" s").split(" to "))
    length = float(whole.removesuffix(" s").split(" to ")[1])
    assert (start, end) == pytest.approx((length / 4, length / 2), abs=0.02 * length)
    ranges = browser.evaluate(
        "[...document.querySelectorAll('.lanes')].map(one => one.layout.xaxis.range)")
    assert ranges[0] == ranges[1], "all runs show the same window"
    # on a busy machine, plotly's 0.3 s between two clicks may be over before the second
    end = time.monotonic() + PATIENCE
    while browser.evaluate(said) != whole:
        assert time.monotonic() < end, browser.evaluate(said)
        for count in (1, 2):
            browser.mouse("mousePressed", left + width / 2, y, buttons=1, clickCount=count)
            browser.mouse("mouseReleased", left + width / 2, y, clickCount=count)
        time.sleep(0.5)


def test_lanes_show_their_spans(browser, made):
    """Worker 0 computes 0.2 s and pushes 0.1 s, three times; and so on, every second."""
    look(browser, made)
    shares = browser.evaluate("""(() => {
        const lane = runs[0].spans.lane(0, false), {shares} = lane.window(5, 6, 10, 5);
        return [...shares];
    })()""")
    expected = [0.0] * 50
    for column, kind in enumerate((0, 0, 1, 0, 0, 1, 0, 0, 1, 2)):
        expected[5 * column + kind] = 1.0
    assert shares == pytest.approx(expected, abs=1e-4)
    colors = browser.evaluate("""(async () => {
        const image = new Image();
        image.src = document.querySelector(".lanes image").getAttribute("href");
        await image.decode();
        const canvas = document.createElement("canvas");
        canvas.width = image.width;
        canvas.height = image.height;
        const context = canvas.getContext("2d");
        context.drawImage(image, 0, 0);
        return [0.05, 0.15, 0.25, 0.95].map(part => [...context.getImageData(
            Math.floor(part * image.width), 20, 1, 1).data].slice(0, 3));
    })()""")
    names = browser.evaluate("DATA.colors")
    assert colors == [list(bytes.fromhex(names[kind][1:])) for kind in (0, 0, 1, 2)]


def test_the_fragment_of_the_address_chooses_window_and_theme(browser, made):
    look(browser, made)
    assert browser.evaluate("document.getElementById('window').textContent") == "5.00 to 6.00 s"
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    browser.evaluate("document.querySelector('[data-view=newest]').click()")
    newest = browser.evaluate("document.getElementById('window').textContent")
    assert float(newest.split()[2]) == pytest.approx(browser.evaluate("span()"), abs=0.01)


def test_hostile_text_is_shown_as_text(browser, made):
    look(browser, made)
    assert any(HOSTILE in row[0][0] for row in rows(browser, "#runs"))
    assert HOSTILE in browser.evaluate("document.querySelectorAll('.settings')[1].textContent")
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate("document.title").startswith("wbsp: ")


def test_forty_workers_have_a_lane_each(browser, made):
    look(browser, made)
    ticks = browser.evaluate("""[...[...document.querySelectorAll(".lanes")].pop()
        .querySelectorAll(".ytick text")].map(
            tick => [tick.textContent, tick.getBoundingClientRect().top])""")
    assert [tick[0] for tick in ticks] == [str(worker) for worker in range(40)]
    tops = [top for _, top in ticks]
    assert min(b - a for a, b in itertools.pairwise(tops)) >= 10, "room for a label each"
    assert len(rows(browser, ".workers")) == 2 + 2 + 40


def test_a_run_that_continues_is_followed_to_its_end(browser, tmp_path):
    """Each time the page asks, a step and a version more are there; then the end."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_settings(folder, {"sync": "asp"})
    log, spans = ServerLog(folder, "asp", tensorboard=False), WorkerLog(folder, 0, "asp")
    log.event(1.0, "join", worker=0, version=0)
    log.event(1.0, "start", workers=[0])
    log.flush()

    class Growing(WatchedRun):
        goes_on = False

        def refresh(self):
            step = self.stamp
            if step < 3 or (step == 3 and self.goes_on):
                t = 2.0 + step
                spans.span("compute", "compute", t - 1, t)
                log.event(t, "accept", worker=0, seq=step, base=step, version=step, steps=1,
                          samples=8, seconds=1.0, weight=1.0)
                log.event(t, "commit", version=step + 1, merged=1)
                log.flush()
            super().refresh()

    run = Growing(folder, "growing")
    server = Watch([run])
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        browser.open(server.address)
        browser.until("runs[0].state.summary.total.steps == 3 && runs[0].spans.count == 3")
        browser.until("document.querySelector('#runs').tBodies[0].rows[0].cells[4].dataset.value"
                      " == 3")  # drawn, too
        [row] = rows(browser, "#runs")
        assert exact(row[4]) == 3 and row[1][0].startswith("running")
        log.event(5.0, "leave", worker=0, reason="no word from it", finished=False)
        run.goes_on = True
        browser.until("document.querySelector('.events').textContent.includes('lost: no word')")
        assert str(folder) in browser.evaluate(
            "document.querySelector('.settings').textContent")
        log.summary(6.0, {}, {}, 4, None, "enough")
        browser.until("document.querySelector('#runs').textContent.includes('enough')")
        log.close()
        with open(folder / "events.jsonl", "ab") as file:
            file.write(b"oops\n")
        browser.until("document.getElementById('trouble').textContent.includes('is damaged')")
    finally:
        server.shutdown()
        server.server_close()
        log.close()
        spans.close()
    assert all("500" in said for said in browser.trouble)
    browser.trouble.clear()


def test_the_pages_of_a_server_above_and_of_its_site(browser, report_of, tmp_path):
    def written(name, events, **settings):
        (tmp_path / name).mkdir()
        write_settings(tmp_path / name, {"sync": "pcc", **settings})
        log = ServerLog(tmp_path / name, "pcc", tensorboard=False)
        for t, kind, fields in events:
            log.event(t, kind, **fields)
        log.close()
        return tmp_path / name

    pushed = {"seq": 0, "base": 0, "version": 0, "steps": 1, "samples": 70, "seconds": 1.0}
    look(browser, report_of(
        written("top", [*((0.0, "join", {"worker": worker, "version": 0}) for worker in (0, 1)),
                        (1.0, "site", {"worker": 0, "workers": 12}),
                        (2.0, "accept", {"worker": 0, **pushed})]),
        written("site", made_of_site(), upstream="top.example:2606", site="3")))
    above, below = (f"article:nth-of-type({n}) .workers" for n in (1, 2))
    head = "[...document.querySelector(%s).tHead.rows[0].cells].map(cell => cell.textContent)"
    assert browser.evaluate(head % json.dumps(above))[:4] == ["worker", "", "workers", "samples"]
    assert browser.evaluate(head % json.dumps(below))[:3] == ["worker", "", "steps"]
    site, worker = rows(browser, above)
    assert (site[1][0], exact(site[2]), exact(site[3])) == ("site", 12, 70)
    assert worker[1][0] == "" and worker[2] == ["–", ""]
    assert browser.evaluate("[...document.querySelectorAll('.above')].map(p => p.textContent)") == [
        "", "site 3 of the server at top.example:2606: 2 updates pushed, 1 of its versions "
            "adopted, version 40 the newest"]
