"""The files of one worker: the published ones and the spans of its timeline."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from wbsp.runlog.worker import WorkerLog


def test_a_workers_log_has_the_published_columns(tmp_path, cluster):
    log = WorkerLog(tmp_path, 1, "pcc")
    log.step(2.5, 4, cluster.reports[1], 0.125)
    log.close()
    assert np.loadtxt(tmp_path / "wk_loss_1_pcc.txt", delimiter=",").tolist() == [2.5, 4, 10, 0.75]
    assert np.loadtxt(tmp_path / "wk_time_1_pcc.txt", delimiter=",").tolist() == [
        2.5, 0.125, 10, 5.0, 10, 4.0, 9, 1.0, 0.5, 2.0]


@pytest.mark.parametrize("sync, row", [("wbsp", [2.5, 10, 10, 0.75]),
                                       ("pcc", [2.5, 9, 10, 0.75, 0.125])])
def test_the_published_code_names_its_files_for_one_model_and_counts_steps(
        tmp_path, cluster, sync, row):
    log = WorkerLog(tmp_path, 1, sync, published=True)
    log.step(2.5, 4, cluster.reports[1], 0.125)
    log.close()
    assert np.loadtxt(tmp_path / "wk_loss_1_wbsp.txt", delimiter=",").tolist() == row
    assert np.loadtxt(tmp_path / "wk_time_1_wbsp.txt", delimiter=",").shape == (10,)


def test_spans_are_lines_of_a_timeline(tmp_path):
    log = WorkerLog(tmp_path, 0, "wbsp")
    log.span("compute", "compute", 1.0, 1.25, step=3)
    log.span("network", "push", 1.25, 1.5, seq=np.int64(2))
    log.close()
    lines = (tmp_path / "events_wk0.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"t": 1.0, "seconds": 0.25, "lane": "compute", "kind": "compute", "step": 3},
        {"t": 1.25, "seconds": 0.25, "lane": "network", "kind": "push", "seq": 2}]


def test_a_timeline_ends_at_its_size_limit_with_one_line(tmp_path):
    said: list[str] = []
    log = WorkerLog(tmp_path, 0, "wbsp", say=said.append, most=200, texts=False)
    for second in range(10):
        log.span("compute", "compute", second, second + 0.5)
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["events_wk0.jsonl"]
    times = [json.loads(line)["t"]
             for line in (tmp_path / "events_wk0.jsonl").read_text().splitlines()]
    assert times == [0, 1, 2, 3]
    assert len(said) == 1 and "the timeline of this worker ends here" in said[0]
    log = WorkerLog(tmp_path, 0, "wbsp", append=True, say=said.append, most=200, texts=False)
    log.span("compute", "compute", 10.0, 10.5)
    log.close()
    assert len((tmp_path / "events_wk0.jsonl").read_text().splitlines()) == 4


def test_the_first_span_is_written_at_once_and_others_after_two_seconds(tmp_path):
    log, path = WorkerLog(tmp_path, 0, "wbsp"), tmp_path / "events_wk0.jsonl"

    def lines():
        return [json.loads(line)["t"] for line in path.read_text().splitlines()]

    log.span("compute", "compute", 0.0, 0.5)
    log.span("compute", "push", 0.5, 1.0)
    assert lines() == [0.0], "the first at once: so a full disk is found at the start"
    log.write(1.1)
    assert lines() == [0.0, 0.5]
    log.span("compute", "compute", 1.0, 3.0)
    assert lines() == [0.0, 0.5]
    log.span("compute", "push", 3.0, 3.2)
    assert lines() == [0.0, 0.5, 1.0, 3.0]
    log.close()
    log.close()
    assert lines() == [0.0, 0.5, 1.0, 3.0]


def test_two_threads_never_mix_their_lines(tmp_path, cluster):
    log = WorkerLog(tmp_path, 0, "wbsp")

    def write(lane):
        for i in range(2000):
            log.span(lane, "push", i / 1000, i / 1000 + 1, seq=i)
            log.step(i / 1000, i, cluster.reports[0], 0.1)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, ["compute", "network"]))
    log.close()
    spans = [json.loads(line) for line in (tmp_path / "events_wk0.jsonl").read_text().splitlines()]
    for lane in ("compute", "network"):
        assert [s["seq"] for s in spans if s["lane"] == lane] == list(range(2000))
    assert np.loadtxt(tmp_path / "wk_time_0_wbsp.txt", delimiter=",").shape == (4000, 10)


def test_a_worker_that_returns_appends(tmp_path, cluster):
    for append in (False, True):
        log = WorkerLog(tmp_path, 0, "wbsp", append=append)
        log.step(1.0 + append, 1, cluster.reports[0], 0.1)
        log.close()
    assert np.loadtxt(tmp_path / "wk_loss_0_wbsp.txt", delimiter=",")[:, 0].tolist() == [1.0, 2.0]
    with pytest.raises(FileExistsError, match="holds an earlier run"):
        WorkerLog(tmp_path, 0, "wbsp")
