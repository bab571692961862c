"""Servers that are killed in mid-run and restarted: the workers' processes continue and end well.

Each worker records its cuts, and the weight of each answered push. The final model must be W_0 plus
the weighted sum of these, each once, to the last bit.
"""

import json
import signal

import pytest
from conservation import steps_of
from jobs import interrupted, until
from server_and_standby import NEVER, OFTEN, ServerAndStandby

from wbsp.ps.checkpoint import format as checkpoint
from wbsp.runlog.reader import read_run


def begun(jobs, sync="pcc", period=OFTEN):
    """A server without a standby."""
    return ServerAndStandby(jobs, sync, standby=False, flags=[period])


@pytest.mark.parametrize("sync", ["pcc", "wbsp", "bsp", "asp"])
def test_a_killed_server_resumes_and_loses_nothing(jobs, sync):
    run = begun(jobs, sync)
    workers = [run.worker(120, seconds=0.01, hold_at=90), run.worker(80, seconds=0.015)]
    workers[0].until("step 30 done")
    run.kill("server")
    run.go()
    run.ends(run.server)
    for worker in workers:
        assert worker.find("no connection to the server at .*; trying for 60 s")
        assert worker.find("connected again to ")
    assert {e["worker"] for e in run.server.events("reattach")} == {0, 1}
    # the run's time includes the time without a server, for every process
    events = read_run(run.server.folder).events
    times = [event["t"] for event in events]
    assert times == sorted(times) and events[0]["t"] < 0
    assert next(e["t"] for e in events if e["kind"] == "start") == 0


def test_an_interrupted_run_continues_with_new_processes(jobs):
    """As if a cluster ends all processes of a job, and restarts the job."""
    server = jobs.server(OFTEN).listens()
    workers = [jobs.integer_worker(server.address, worker, seconds=0.01) for worker in range(2)]
    for worker in workers:
        worker.until("step 20 done")
    server.process.send_signal(signal.SIGTERM)
    interrupted(server, signal.SIGTERM)
    for worker in workers:
        worker.ends_well()
    again = jobs.folder / "again"
    again.mkdir()
    server = jobs.server(OFTEN, "--resume", port=int(server.address.split(":")[1])).listens()
    workers = [jobs.integer_worker(server.address, worker, seconds=0.01, steps=30,
                                   record=str(again)) for worker in range(2)]
    for job in (*workers, server):
        job.ends_well()
    state = checkpoint.load(server.folder / "checkpoint.safetensors").state
    assert min(steps_of(state).values()) >= 20 + 30, "steps of both times"


@pytest.mark.parametrize("sync", ["pcc", "bsp"])
def test_a_server_may_die_before_its_first_version_is_written(jobs, sync):
    run = begun(jobs, sync, NEVER)
    first = run.worker(60, seconds=0.01)
    second = run.worker(60, seconds=0.01, hold_at=20)
    second.until("step 20 done")
    first.until("step 5 done")  # it has pushed, too
    run.kill("server")
    run.go()
    saved = run.ends(run.server)
    assert run.server.find("resuming from version 0")
    events = read_run(run.server.folder).events
    assert [e["kind"] for e in events if e["t"] == 0] == ["start"], "training began but once"
    resent = {e["worker"]: e for e in run.server.events("resent")}
    assert set(resent) == {0, 1} and all(e["first"] == 0 for e in resent.values())
    assert saved.state.mark >= 2
    assert first.find("starts with seq 0") and second.find("starts with seq 0")


@pytest.mark.parametrize("sync", ["pcc", "wbsp"])
def test_a_server_may_die_twice_in_a_row(jobs, sync):
    run = begun(jobs, sync)
    workers = [run.worker(150, seconds=0.01, hold_at=60), run.worker(150, seconds=0.01)]
    workers[0].until("step 30 done")
    run.kill("server")
    run.server.until("reconnected")
    run.kill("server")
    workers[0].until("step 60 done")
    run.kill("server")
    run.go()
    run.ends(run.server)
    epochs = json.loads((run.server.folder / "run.json").read_text())["epoch"]
    assert epochs in (5, 7), "one of the servers may have died before it wrote its own"


@pytest.mark.parametrize("period", [OFTEN, NEVER])
def test_a_server_may_die_when_a_worker_has_finished_and_waits(jobs, period):
    run = begun(jobs, "wbsp", period)
    run.worker(15)
    last = run.worker(40, hold_at=25)
    run.server.until("worker 0 left: finished")
    last.until("step 25 done")
    run.kill("server")
    run.server.until("worker 0 reconnected, and has finished")
    run.go()
    run.ends(run.server)


def test_a_server_may_die_when_all_have_finished(jobs):
    """It dies when the last worker has left: before or after the final version is safe."""
    run = begun(jobs, "pcc", NEVER)
    for _ in range(2):
        run.worker(20, seconds=0.01)
    run.server.until("worker . left: finished")
    until(lambda: len(run.server.find("left: finished")) == 2, "both to finish")
    run.server.signal(19)  # SIGSTOP: between two of its messages
    run.flags.append("--connect_timeout=20")  # both may have the final version, and not return
    run.kill("server")
    run.ends(run.server)


def test_a_server_may_die_while_a_worker_waits_for_the_others(jobs):
    run = begun(jobs, "bsp")
    first = run.worker(20)
    first.until("is a member")  # which it knows later than the server
    until((run.server.folder / "checkpoint.safetensors").exists, "W_0 to be safe")
    run.kill("server")
    run.server.until("worker 0 reconnected with version 0")
    run.worker(20)
    run.ends(run.server)
    assert first.find("starts with seq 0")


def test_a_worker_that_is_missing_returns_later(jobs):
    """The server continues without a stopped worker, and readmits it when it reconnects."""
    run = begun(jobs, "asp")
    here = run.worker(60, seconds=0.01, hold_at=30)
    away = run.worker(60, seconds=0.01)
    here.until("step 20 done")
    away.signal(19)
    run.server.kill()
    again = ("import runpy, wbsp.timeouts; wbsp.timeouts.REATTACH = 1.0\n"
             "runpy.run_module('wbsp.ps', run_name='__main__')")
    address, cwd = run.server.address, run.server.cwd
    run.server = jobs.start("server", "-c", again, "--worker_num=2", "--sync=asp", *run.flags,
                            f"--port_base={run.ports[0]}", "--resume", kind=type(run.server))
    run.server.address, run.server.cwd = address, cwd
    run.server.until("starting with 1 of 2 workers")
    here.until("step 30 done")
    away.signal(18)
    run.server.until("worker 1 reconnected")
    run.go()
    run.ends(run.server)


def test_a_server_of_another_run_admits_no_members_and_ends_no_training(jobs):
    """As when the command of a server that has died is typed again, without --resume."""
    run = begun(jobs, "wbsp")
    workers = [run.worker(30, hold_at=5), run.worker(30, hold_at=5)]
    workers[0].until("step 5 done")
    run.server.kill()
    another = run.start_server()  # run-002
    for job in workers:
        job.until(r"is of run \w+, and this server's run is \w+; .* start it again with --resume")
    another.kill()
    run.server = run.start_server("--resume")
    run.go()
    run.ends(run.server)


def test_a_server_that_lost_its_run_refuses_the_runs_members(jobs):
    """A supervisor then restarts them in the new run."""
    run = begun(jobs, "wbsp")
    workers = [run.worker(1000, hold_at=5), run.worker(1000, hold_at=5)]
    workers[0].until("step 5 done")
    run.server.kill()
    run.flags = [OFTEN, "--base_dir=another", "--resume"]
    run.server = run.start_server()
    for job in workers:
        run.go()
        assert job.ends() == 1
        assert job.find(r"the server refused: worker \d is of run \w+, and this server's run is ")


def test_resuming_without_a_checkpoint_begins_a_run(jobs):
    server = jobs.server("--base_dir=run", "--resume").listens()
    assert server.find("no checkpoint found; starting a new run")
    workers = [jobs.integer_worker(server.address, worker, steps=5) for worker in range(2)]
    for job in (*workers, server):
        job.ends_well()
