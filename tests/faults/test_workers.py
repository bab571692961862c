"""Processes that are killed or interrupted at a given step: the others continue."""

import json
import signal

import pytest
from conservation import IntegerRun, assert_conserved, steps_of
from integer_replica import read_result
from jobs import interrupted, until

from wbsp.ps.checkpoint import format as checkpoint


@pytest.mark.parametrize("sync", ["bsp", "wbsp", "pcc"])
def test_the_others_continue_without_a_killed_worker(jobs, sync):
    server = jobs.server(sync=sync, workers=3)
    doomed = jobs.integer_worker(server.address, 2, die_at=5, steps=1000, seconds=0.01)
    others = [jobs.integer_worker(server.address, worker, steps=40, hold_at=20, seconds=0.01)
              for worker in range(2)]
    assert doomed.ends() == -signal.SIGKILL
    server.until("worker 2 was lost")
    (jobs.folder / "go").touch()
    for job in (*others, server):
        job.ends_well()
    assert_conserved(IntegerRun.of_processes(server.folder, jobs.folder))
    (left,) = [event for event in server.events("leave") if not event["finished"]]
    assert left["worker"] == 2
    later = [event for event in server.events("accept") if event["t"] > left["t"]]
    assert {event["worker"] for event in later} == {0, 1}
    assert {event["weight"] for event in later} <= {1 / 2, 1.0}
    assert [e for e in server.events("commit") if e["t"] > left["t"]], "no version without it"
    for worker in range(2):
        assert read_result(jobs.folder, worker)["steps"] == 40


@pytest.mark.parametrize("sync", ["bsp", "pcc"])
def test_a_killed_worker_returns_and_continues_where_it_stopped(jobs, sync):
    server = jobs.server(sync=sync, workers=2)
    other = jobs.integer_worker(server.address, 0, steps=1000, hold_at=20, seconds=0.01)
    doomed = jobs.integer_worker(server.address, 1, die_at=5, seconds=0.01)
    assert doomed.ends() == -signal.SIGKILL
    server.until("worker 1 was lost")
    back = jobs.integer_worker(server.address, 1, steps=10, seconds=0.01, seed=1)
    back.until("starts with seq")
    other.until("step 20 done")
    other.signal(signal.SIGTERM)
    (jobs.folder / "go").touch()
    back.ends_well()
    interrupted(other, signal.SIGTERM)
    server.ends_well()
    handled = [e["seq"] for e in server.events("accept") if e["worker"] == 1]
    assert handled == list(range(len(handled))), "its numbers continue where they stopped"
    (said,) = back.find("starts with seq")
    seq, steps, of_all = [int(word) for word in said.split() if word.isdigit()]
    assert 1 <= seq <= 5 and 1 <= steps <= 5
    came_back = [e["t"] for e in server.events("join") if e["worker"] == 1][1]
    assert of_all == sum(e["steps"] for e in server.events("accept") if e["t"] < came_back)
    assert len(server.find("worker 1 joined")) == 2
    saved = assert_conserved(IntegerRun.of_processes(server.folder, jobs.folder))
    assert saved.state.members[1].steps == steps + 10


@pytest.mark.slow
def test_workers_wait_for_a_killed_server_that_resumes_from_its_checkpoint(jobs):
    flags = ["--check_period=0.2", "--base_dir=wbsp"]
    server = jobs.server(*flags, sync="wbsp")
    workers = [jobs.integer_worker(server.address, worker, seconds=0.02, patience=2)
               for worker in range(2)]
    path = server.folder / "checkpoint.safetensors"
    until(lambda: path.exists() and checkpoint.load(path).state.version >= 5, "version 5")
    server.kill()
    saved = checkpoint.load(path)
    for worker in workers:
        assert worker.ends(60) == 1
        worker.was_clean()
        assert worker.find(f"no connection to the server at {server.address}; trying for 2 s")
        (line,) = worker.find("lost the server")
        assert server.address in line and "--resume" in line
    before = (server.folder / "events.jsonl").read_bytes()

    again = jobs.server(*flags, "--resume", sync="wbsp",
                        port=int(server.address.rpartition(":")[2]))
    assert again.folder == server.folder
    again.until(f"resuming from version {saved.state.version}")
    workers = [jobs.integer_worker(again.address, worker, steps=8, seed=1) for worker in range(2)]
    for job in (*workers, again):
        job.ends_well()
    final = assert_conserved(IntegerRun.of_processes(again.folder, jobs.folder))
    assert final.state.version > saved.state.version
    assert final.state.elapsed > saved.state.elapsed
    assert steps_of(final.state) == {w: saved.state.members[w].steps + 8 for w in range(2)}
    events = (again.folder / "events.jsonl").read_bytes()
    whole = before[:before.rfind(b"\n") + 1]
    assert events.startswith(whole) and len(events) > len(whole), "the file continues"
    new = [json.loads(line) for line in events[len(whole):].splitlines()]
    commits = [event["version"] for event in new if event["kind"] == "commit"]
    assert commits == list(range(saved.state.version + 1, final.state.version + 1))
    assert min(event["t"] for event in new) >= saved.state.elapsed


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_server_lets_all_workers_finish(jobs, signum):
    server = jobs.server("--check_period=3600", sync="pcc")
    workers = [jobs.integer_worker(server.address, worker, seconds=0.01) for worker in range(2)]
    for worker in workers:
        worker.until("step 5 done")
    server.signal(signum)
    for worker in workers:
        worker.ends_well()
    interrupted(server, signum)
    assert server.find(f"{signum.name}: asking the workers to finish")
    saved = assert_conserved(IntegerRun.of_processes(server.folder, jobs.folder))
    assert sum(steps_of(saved.state).values()) == sum(
        read_result(jobs.folder, worker)["steps"] for worker in range(2))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_worker_pushes_its_progress(jobs, signum):
    server = jobs.server(sync="wbsp")
    stayer = jobs.integer_worker(server.address, 0, steps=60, hold_at=30, seconds=0.01)
    leaver = jobs.integer_worker(server.address, 1, seconds=0.01)
    leaver.until("step 5 done")
    leaver.signal(signum)
    interrupted(leaver, signum)
    server.until("worker 1 left: interrupted")
    (jobs.folder / "go").touch()
    for job in (stayer, server):
        job.ends_well()
    saved = assert_conserved(IntegerRun.of_processes(server.folder, jobs.folder))
    assert saved.state.members[1].steps == read_result(jobs.folder, 1)["steps"] >= 5
    assert saved.state.members[0].steps == 60


def test_a_server_without_workers_can_be_interrupted(jobs):
    server = jobs.server().listens()
    server.signal(signal.SIGINT)
    interrupted(server, signal.SIGINT)


def test_a_second_signal_ends_the_server_at_once(jobs):
    server = jobs.server(sync="bsp", workers=1)
    deaf = jobs.integer_worker(server.address, 0, hold_at=3)
    deaf.until("step 3 done")
    server.signal(signal.SIGINT)
    server.until("asking the workers to finish")
    server.signal(signal.SIGINT)
    interrupted(server, signal.SIGINT, patience=10)
    deaf.kill()
