"""The window a timeline shows, and the trace for Perfetto."""

import json
from collections import defaultdict

import pytest

from wbsp.figures import timeline
from wbsp.figures.load import gather
from wbsp.figures.timeline import default_window, draw_timeline
from wbsp.figures.trace import write_trace


def test_default_window_is_a_dozen_steps_of_the_slowest_worker_after_a_warm_up(make_run):
    [stats] = gather([make_run("run", "wbsp", rounds=20)])
    assert default_window(stats) == pytest.approx((3.1, 14.8))  # worker 1 computes 0.1 .. 0.8


def test_default_window_of_a_short_run_is_all_of_it(make_run):
    [stats] = gather([make_run("run", "wbsp", rounds=2)])
    assert default_window(stats) == pytest.approx((0.1, 1.8))


def test_nothing_is_drawn_for_a_window_in_which_nothing_happened(make_run, tmp_path):
    [stats] = gather([make_run("run", "wbsp", rounds=2)])
    assert draw_timeline(stats, tmp_path / "timeline.png", (50, 60)) is None
    assert not (tmp_path / "timeline.png").exists()


def test_trace_holds_every_span_and_every_event(make_run, tmp_path):
    [stats] = gather([make_run("run", "wbsp", rounds=10)])
    trace = json.loads(write_trace(stats.run, tmp_path / "trace.json").read_text())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    seconds = defaultdict(float)
    for event in trace:
        if event["ph"] == "X":
            seconds[event["pid"], names[event["pid"], event["tid"]], event["name"]] += event["dur"]
    assert seconds[1, "compute", "compute"] == pytest.approx(6e6)
    assert seconds[2, "compute", "data"] == pytest.approx(1e6)
    assert seconds[1, "network", "push"] == pytest.approx(3e6)
    first = next(e for e in trace if e["ph"] == "X" and e["pid"] == 2 and e["name"] == "compute")
    assert (first["ts"], first["dur"]) == pytest.approx((1e5, 7e5))
    commits = [e for e in trace if e["ph"] == "i" and e["cat"] == "commit"]
    assert [e["name"] for e in commits] == [f"v{v}" for v in range(1, 11)]
    assert commits[0]["ts"] == pytest.approx(9e5) and commits[0]["s"] == "g"
    assert sum(e["cat"] == "accept" for e in trace if e["ph"] == "i") == 40


def test_versions_from_above_are_drawn_through_all_processes(site_run, tmp_path):
    [stats] = gather([site_run])
    trace = json.loads(write_trace(stats.run, tmp_path / "trace.json").read_text())["traceEvents"]
    assert [(e["name"], e["cat"], e["tid"]) for e in trace if e.get("s") == "g"] == [
        ("v1", "commit", 0), ("v2", "commit", 0), ("v3", "adopt", 0)]


def test_the_timeline_distinguishes_versions_from_above_and_the_sites_own(
        site_run, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(timeline, "save", lambda figure, path: figures.append(figure) or path)
    draw_timeline(*gather([site_run]), tmp_path / "timeline.png", (0.0, 3.0))
    [axes] = figures[0].axes
    assert [line.get_label() for line in axes.lines] == [
        "version committed", "version committed", "version adopted from above"]
    named = {text.get_text() for text in figures[0].legends[0].texts}
    assert named >= {"compute", "wait", "version committed", "version adopted from above"}


def test_trace_is_valid_json_for_numbers_that_json_lacks(make_run, tmp_path):
    [stats] = gather([make_run("run", "wbsp", rounds=2, accuracy=lambda t: float("nan"))])
    text = write_trace(stats.run, tmp_path / "trace.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["traceEvents"]
