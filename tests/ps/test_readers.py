"""Processes that evaluate a run's versions, and are no workers: `wbsp.versions`."""

import contextlib
import json
import math
import re
import signal

import forked
import numpy as np
import pytest
from hostile_peer import Peer
from jobs import until

import wbsp
import wbsp.wire.line
from wbsp import timeouts
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.wire.messages.reading import ReadVersion, VersionPart

READER = """
import sys, time, wbsp
for version in wbsp.versions(sys.argv[1]):
    print("has", version.number, flush=True)
    while True:
        time.sleep(1)
"""


@pytest.fixture
def running(jobs):
    """running(*flags) is a server with two workers that train until they are stopped."""
    def run(*flags):
        server = jobs.server("--check_period=0.1", *flags).listens()
        return server, [jobs.integer_worker(server.address, worker, seconds=0.01)
                        for worker in range(2)]
    return run


def pinned(server):
    return {path.name for path in server.folder.glob("version-*")}


def test_a_process_that_evaluates_has_the_best_kept_and_ends_the_run_by_a_target(running):
    server, workers = running("--target=score:4")
    server.until("no process evaluates this run's versions yet, so --target=max:score:4 does not")
    scores, numbers, said = iter([1.0, 3.0, 2.0, 4.0]), [], []
    for version in wbsp.versions(server.address, say=said.append):
        assert version.number not in numbers and version.number == version._saved.state.version
        numbers.append(version.number)
        assert server.folder.joinpath(f"version-{version.number}.safetensors").exists()
        score = next(scores, 0.5)
        version.report(score=score, loss=1 / score, odd=math.nan)
        last = version.last, version._saved.vector
        if len(numbers) == 2:
            until((server.folder / "best.json").exists, "the best version to be kept", 30)
            version.report(score=100.0)  # of this version, this is the second report
    for job in (*workers, server):
        job.ends_well()
    assert numbers == sorted(numbers) and len(numbers) > 4
    found = server.events("evaluation")
    assert [event["version"] for event in found] == numbers
    assert [event["metrics"]["score"] for event in found][:5] == [1.0, 3.0, 2.0, 4.0, 0.5]
    assert found[0]["loss"] == 1.0 and found[0]["accuracy"] is None
    final = checkpoint.load(server.folder / "checkpoint.safetensors")
    assert last[0] and np.array_equal(last[1], final.vector)
    best = checkpoint.load(server.folder / "best.safetensors")
    score = json.loads((server.folder / "best.json").read_text())
    assert best.state.version == numbers[3] == score["version"] and score["value"] == 4.0
    assert [event["reason"] for event in server.events("stop")] == [
        f"target score 4 reached (version {numbers[3]}: 4)"]
    assert server.find(r"version \d+: score 3, loss 0.3333 \(the best so far\)")
    assert not pinned(server)
    assert any("odd is nan" in line for line in said)
    assert any(f"version {numbers[1]} was evaluated before" in line for line in said)


def test_a_metric_is_found_with_or_without_val_and_one_that_never_comes_is_named(running):
    server, workers = running("--target=val_score:4", "--best=val_acc")
    for score, version in zip([1.0, 4.0], wbsp.versions(server.address), strict=False):
        version.report(score=score, val_loss=1 / score)
    for job in (*workers, server):
        job.ends_well()
    assert re.search(r"stopped: target val_score 4 reached \(version \d+: 4\)", server.text)
    lines = re.findall(r"no evaluation reports .*", server.text)
    assert lines == ["no evaluation reports 'val_acc'; reported: loss, score; so "
                     "--best=max:val_acc keeps no version: restart this server with --resume and "
                     "one of these names"]
    assert [event["loss"] for event in server.events("evaluation")] == [1.0, 0.25]


def test_where_nothing_is_evaluated_the_best_version_is_missed_in_a_line(running):
    server, workers = running("--best=val_loss", "--until=0.5s")
    for job in (*workers, server):
        job.ends_well()
    assert server.find("no process evaluates this run's versions yet, so --best=min:val_loss keeps "
                       "none: start a process")
    assert server.find("no version was evaluated, so --best=min:val_loss had no effect")


def test_an_evaluator_that_dies_does_not_stop_the_run_and_may_return(jobs, running):
    server, workers = running()
    (jobs.folder / "reader.py").write_text(READER)
    reader = jobs.start("reader", "reader.py", server.address, fork=forked.WBSP)
    number = int(reader.until("^has").split()[1])
    until(lambda: pinned(server) == {f"version-{number}.safetensors"}, "one version to be pinned")
    until(lambda: server.events("checkpoint")[-1]["version"] > number, "newer versions", 60)
    reader.kill()
    server.until("lost the evaluator at")
    until(lambda: not pinned(server), "the version to be let go")
    with contextlib.closing(wbsp.versions(server.address)) as versions:
        assert next(versions).number > number, "and it gets the newest"
    server.signal(signal.SIGINT)
    for job in (*workers, server):
        job.ends()
        job.was_clean()
    assert not server.events("evaluation")


def test_a_stranger_reads_and_reports_nothing(running, monkeypatch):
    server, workers = running("--best=score")
    version = next(wbsp.versions(server.address))
    with Peer(server.address) as stranger:
        stranger.send(ReadVersion(f"version-{version.number}.safetensors", 0))
        assert stranger.hears(VersionPart).data == b""
    monkeypatch.setattr(wbsp.wire.line, "contact", lambda token, on: bytes(32))
    with pytest.raises(ConnectionError, match="a process of another user or of another run"):
        next(wbsp.versions(server.address))
    assert version.number >= 0 and not server.events("evaluation")
    server.signal(signal.SIGINT)
    for job in (*workers, server):
        job.ends()


def test_bad_arguments_are_refused_in_one_line():
    with pytest.raises(ValueError, match="is not host:port"):
        wbsp.versions("here")
    with pytest.raises(ConnectionError, match="no server answers"):
        next(wbsp.versions("localhost:1", patience=0.1))


def test_a_reader_that_waits_for_its_server_prints_a_line():
    said = []
    with pytest.raises(ConnectionError, match="no server answers"):
        next(wbsp.versions("localhost:1", patience=6.0, say=said.append))
    assert len(said) == 1 and said[0].startswith("waiting for the server at localhost:1, for ")


def test_best_version_and_patience_survive_the_server(jobs):
    flags = "--best=score", "--best_patience=4", "--check_period=0.1"
    server = jobs.server(*flags).listens()
    workers = [jobs.integer_worker(server.address, worker, seconds=0.01) for worker in range(2)]
    scores, found = iter([1.0, 3.0, 2.0]), {}
    try:
        for version in wbsp.versions(server.address, patience=60):
            found[version.number] = next(scores, 2.5)
            version.report(score=found[version.number])
            if len(found) == 3:
                until((server.folder / "best.json").exists, "the best version to be kept", 30)
                server.kill()
                server = jobs.server("--resume", *flags, port=int(server.address.split(":")[1]))
    except ConnectionError as error:
        raise AssertionError(f"{error}, after versions {list(found)}:\n{server.text}") from None
    for job in (*workers, server):
        job.ends_well()
    best = list(found)[1]
    assert checkpoint.load(server.folder / "best.safetensors").state.version == best
    assert [event["reason"] for event in server.events("stop")] == [
        f"4 evaluations in a row were no better than version {best:,} (score 3)"]
    assert len(server.events("evaluation")) >= 6
    assert not server.find("the best so far"), "of those since"


def test_a_reader_of_the_final_version_does_not_wait_for_a_dead_server(running, monkeypatch):
    monkeypatch.setattr(timeouts, "READ_TO_THE_END", 1.0)
    server, _ = running("--target=score:1")
    for version in wbsp.versions(server.address):
        if version.last:
            server.kill()
        else:
            version.report(score=1.0)
    assert version.last


def test_patience_without_a_metric_is_refused(jobs):
    server = jobs.server("--best_patience=3")
    assert server.ends() == 1
    assert server.find("--best_patience=3 needs a metric to compare versions by")


def test_a_reader_that_cannot_read_a_version_reports_it_and_fails(running, monkeypatch):
    server, _ = running()
    monkeypatch.setattr("wbsp.reading.read_at", lambda *_: "no server answers at there:1")
    monkeypatch.setattr("wbsp.runlog.awaited._FIRST", 0.5)
    said = []
    with pytest.raises(ConnectionError, match=r"no version could be read within 3 s: no server "
                                              r"answers at there:1"):
        next(wbsp.versions(server.address, patience=3, say=said.append))
    assert any(line.startswith("waiting for the server to send a version (no server answers at "
                               "there:1)") for line in said)
