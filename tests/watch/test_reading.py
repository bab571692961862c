"""Files are read as they grow: each line once, half lines later, what was undone not at all."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbsp.core.stats import PHASES
from wbsp.runlog.events import ACCEPT, ADOPT, COMMIT, CUT, REJECT, EventLog
from wbsp.runlog.folder import write_settings
from wbsp.runlog.reader import read_run
from wbsp.runlog.spans import ROW
from wbsp.runlog.tail import Replaced, Tail
from wbsp.watch import spans as spans_module
from wbsp.watch.spans import SpanLog, together

DECODER = msgspec.json.Decoder()


def lines(events):
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def append(path, data):
    with open(path, "ab") as file:
        file.write(data)


def texts(tail):
    return [line for _, decoded in tail.blocks() for line in decoded]


def test_only_appended_lines_are_read(tmp_path, monkeypatch):
    path = tmp_path / "log"
    tail = Tail(path, DECODER)
    assert texts(tail) == []
    append(path, b"1\n2\n")
    assert texts(tail) == [1, 2]
    append(path, b"3\n[4")
    assert texts(tail) == [3]
    assert texts(tail) == []
    append(path, b", 5]\n")
    assert texts(tail) == [[4, 5]]


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_a_line_may_be_longer_than_a_block(tmp_path, monkeypatch, block):
    monkeypatch.setattr("wbsp.runlog.tail.BLOCK", block)
    path = tmp_path / "log"
    append(path, b'"abcdefgh"\n2\n\n'.replace(b"\n\n", b"\n") + b'"half')
    tail = Tail(path, DECODER)
    assert texts(tail) == ["abcdefgh", 2]
    append(path, b'"\n')
    assert texts(tail) == ["half"]


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "log"
    append(path, b"1\n")
    tail = Tail(path, DECODER)
    assert texts(tail) == [1]
    append(path, b"2\n{oops}\n3\n")
    with pytest.raises(ValueError, match=r"log, line 3 is damaged: "):
        texts(tail)


def test_another_file_is_not_taken_for_the_same(tmp_path):
    path = tmp_path / "log"
    append(path, b"1\n2\n")
    tail = Tail(path, DECODER)
    assert texts(tail) == [1, 2]
    path.write_bytes(b"7\n")
    with pytest.raises(Replaced):
        texts(tail)
    path.unlink()
    with pytest.raises(Replaced):
        texts(tail)


# Events of a server that is killed and resumed at any moment.

def event(kind, t, version):
    made = {"t": t, "kind": kind, "version": version}
    if kind in ("accept", "reject"):
        made |= {"worker": version % 3, "seq": 0, "base": 0, "steps": 1, "samples": 2,
                 "seconds": 0.5}
    if kind == "reject":
        made["reason"] = f"because of {version % 2}"
    if kind == "resent":
        made |= {"worker": 1, "first": 3, "last": 5, "steps": 3, "samples": 6, "seconds": 1.0,
                 "base": 0, "rejected": {"late": 1}, "mark": 0}
    if kind == "cut":
        made |= {"seq": 0, "steps": 1, "samples": 2}
    if kind == "adopt":
        made["above"] = 7
    if kind == "start":
        made["workers"] = [0]
    if kind in ("join", "reattach", "leave"):
        made |= {"worker": version % 3, "finished": False, "reason": "lost"}
    return made


EVENTS = st.lists(st.builds(event, st.sampled_from(
    ["accept", "reject", "commit", "cut", "adopt", "checkpoint", "resume", "evaluation", "start",
     "reattach", "join", "leave", "resent"]), st.integers(0, 6).map(float), st.integers(0, 9)),
    max_size=40)


def seen(log):
    """The content of a compact log, in the order of the file, as far as rows hold it."""
    kinds = {ACCEPT: "accept", REJECT: "reject", COMMIT: "commit", CUT: "cut", ADOPT: "adopt"}
    rows = [(kinds.get(row["code"], "resent"), float(row["t"]), int(row["version"]))
            for row in log.rows]
    merged, done = [], 0
    for before, other in log.others:
        merged += rows[done:before]
        done = before
        if other["kind"] != "resent":
            merged.append((other["kind"], other["t"], other["version"]))
    return merged + rows[done:]


@given(EVENTS, st.integers(0, 60))
def test_a_resume_undoes_the_same_events_in_rows_as_in_full_records(tmp_path_factory, events,
                                                                    cut):
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    data = lines(events)
    log, whole = EventLog(path, compact=True), EventLog(path)
    append(path, data[:len(data) * cut // 60])
    log.read()
    append(path, data[len(data) * cut // 60:])
    log.read()
    whole.read()
    kept = [event for _, event in whole.others]
    assert not len(whole.rows) and all(event in events for event in kept)
    assert seen(log) == [(e["kind"], e["t"], e["version"]) for e in kept]
    assert log.kind("resent") == [e for e in kept if e["kind"] == "resent"]
    assert log.began == whole.began
    reasons = [log.reasons[row["reason"]] for row in log.rows if row["code"] == REJECT]
    assert reasons == [e["reason"] for e in kept if e["kind"] == "reject"]


@pytest.mark.parametrize("compact", [False, True])
def test_after_a_resume_the_begin_of_training_keeps_its_place_in_time(tmp_path, compact):
    path = tmp_path / "events.jsonl"
    append(path, lines([event("checkpoint", 1, 0), event("start", 3, 0), event("resume", 1, 0),
                        event("accept", 2, 0), event("leave", 2, 0), event("commit", 4, 1),
                        event("leave", 4, 1), event("reattach", 4, 1)]))
    log = EventLog(path, compact)
    log.read()
    assert log.began == 3
    seen_ = seen(log) if compact else [(e["kind"], e["t"]) for _, e in log.others]
    assert [one[:2] for one in seen_] == [
        ("checkpoint", 1), ("resume", 1), ("accept", 2), ("leave", 2), ("start", 3), ("commit", 4),
        ("leave", 4), ("reattach", 4)]


@pytest.mark.parametrize("compact", [False, True])
def test_an_empty_line_between_events_is_passed_over(tmp_path, compact):
    path = tmp_path / "events.jsonl"
    append(path, b"\n" + lines([event("accept", 1, 0)]) + b"\n \n" + lines([event("join", 2, 4)]))
    log = EventLog(path, compact)
    assert log.read() and log.kind("join") == [event("join", 2, 4)]


SPANS = st.lists(st.tuples(st.sampled_from(["compute", "network"]), st.integers(0, 30),
                           st.integers(0, 5), st.sampled_from(PHASES)), max_size=30)


def repeated(spans):
    """The spans of a worker without those that it has repeated, one after the other."""
    kept, ends = [], {}
    for span in spans:
        end = span["t"] + span["seconds"]
        if end < ends.get(span["lane"], end):
            kept = [one for one in kept if one["t"] + one["seconds"] <= span["t"]]
            ends.clear()
        ends[span["lane"]] = end
        kept.append(span)
    return kept


@given(SPANS, SPANS, st.integers(0, 30))
def test_spans_that_a_worker_repeated_are_left_out(tmp_path_factory, one, two, cut):
    folder = tmp_path_factory.mktemp("run")
    write_settings(folder, {"sync": "bsp"})
    made = [[{"lane": lane, "t": float(t), "seconds": float(seconds), "kind": kind}
             for lane, t, seconds, kind in spans] for spans in (one, two)]
    log = SpanLog(folder)
    for part in (slice(cut), slice(cut, None)):
        for worker, spans in enumerate(made):
            append(folder / f"events_wk{worker}.jsonl", lines(spans[part]))
        log.read()
    assert read_run(folder).spans == {index: repeated(spans) for index, spans in enumerate(made)}
    for worker, spans in enumerate(made):
        rows = log.rows[log.rows["lane"] // 2 == worker]
        assert [(row["lane"] % 2, row["t"], row["seconds"], PHASES[row["kind"]]) for row in rows] \
            == [(s["lane"] == "network", s["t"], s["seconds"], s["kind"]) for s in repeated(spans)]


def test_events_and_spans_are_those_of_the_reader(bad_day):
    folder = bad_day("asp")
    run, log, spans = read_run(folder), EventLog(folder / "events.jsonl", True), SpanLog(folder)
    assert log.read() and spans.read()
    assert not log.read() and not spans.read()
    assert len(log.rows) + len(log.others) == len(run.events)
    assert spans.workers == list(run.spans)
    assert len(spans.rows) == sum(map(len, run.spans.values()))


# Many spans.

def table(rng, lanes, spans):
    """Spans without gaps, of random lengths, in each of `lanes`."""
    seconds = rng.exponential(0.1, (lanes, spans))
    rows = np.empty(lanes * spans, ROW)
    rows["lane"] = np.repeat(np.arange(lanes), spans)
    rows["seconds"] = seconds.ravel()
    rows["t"] = (np.cumsum(seconds, 1) - seconds).ravel()
    rows["kind"] = rng.integers(0, len(PHASES), lanes * spans)
    return rows


@pytest.mark.parametrize("grain", [1e-4, 0.3, 2.0, 1e6])
def test_spans_put_together_keep_the_seconds_of_each_phase(grain):
    rows = table(np.random.default_rng(0), 4, 500)
    few = together(rows, grain)
    for lane in range(4):
        for kind in range(len(PHASES)):
            sums = [all_[(all_["lane"] == lane) & (all_["kind"] == kind)]["seconds"].sum()
                    for all_ in (rows, few)]
            assert sums[0] == pytest.approx(sums[1])
        mine = few[few["lane"] == lane]
        assert np.all(mine["t"][1:] >= mine["t"][:-1] + mine["seconds"][:-1] - 1e-9), "no overlap"
    cells = 4 * (rows["t"].max() // grain + 1)
    assert len(few) <= min(len(rows), cells * len(PHASES))


def test_of_too_many_spans_neighbours_are_put_together(forty, monkeypatch):
    whole = SpanLog(forty)
    whole.read()
    monkeypatch.setattr(spans_module, "MOST", 2000)
    log = SpanLog(forty)
    log.read()
    assert len(whole.rows) > 2000 >= len(log.rows) > 500
    assert log.generation == 1 and log.grain > 0
    assert log.rows["seconds"].sum() == pytest.approx(whole.rows["seconds"].sum())
