"""Several fits in one process: each is a run; the server ends with the last process."""

import copy
import json
import os
import signal
import sys
import textwrap

import forked
import keras
import numpy as np
import pytest
from jobs import free_port, until

import wbsp
from wbsp.ps.checkpoint.format import load
from wbsp.wire.errors import TransportError
from wbsp.worker import next_run

pytestmark = [pytest.mark.slow,  # TensorFlow takes its seconds to start
              pytest.mark.usefixtures("process_ends")]

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)
SCRIPT = textwrap.dedent("""
    import os, sys, time, keras, numpy as np, wbsp
    print("imported", flush=True)
    worker, fits = int(os.environ["WBSP_WORKER_INDEX"]), int(sys.argv[1])
    x = np.random.default_rng(worker).normal(size=(320, 4)).astype("float32")
    for fit in range(fits):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(fit + 1)])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(x, x[:, :fit + 1], batch_size=32, verbose=0, callbacks=[wbsp.SyncCallback()])
        print("final", fit, [w.tobytes().hex() for w in model.get_weights()], flush=True)
    if sys.argv[2:]:
        print("sleeps", flush=True)
        time.sleep(300)
    """)


def fit(hook, units=1, *callbacks):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(X, np.repeat(Y, units, 1), batch_size=8, verbose=0, callbacks=[hook, *callbacks])
    return model


def script(jobs, address, worker, *arguments):
    path = jobs.folder / f"train{worker}.py"  # another process may be reading its own right now
    path.write_text(SCRIPT)
    return jobs.start(f"worker{worker}", path, *arguments, fork=forked.KERAS,
                      WBSP_SERVER=address, WBSP_WORKER_INDEX=str(worker), CUDA_VISIBLE_DEVICES="")


def settings(server, experiment="pcc"):
    """The settings of each run that has a folder."""
    folder = server.cwd / "runs" / experiment
    return [json.loads((run / "run.json").read_text()) for run in sorted(folder.glob("run-*"))]


def same_final_version(server, standby):
    """Whether the standby has kept what the server has written of its first run."""
    one, other = (load(job.cwd / "runs" / name / "run-001" / "checkpoint.safetensors")
                  for job, name in ((server, "pcc"), (standby, "pcc-standby")))
    return one.state.version == other.state.version and np.array_equal(one.vector, other.vector)


def test_each_fit_is_a_run_of_its_own_in_one_series(jobs):
    server = jobs.server(workers=1, series=True).listens()
    hook = wbsp.SyncCallback(server.address, 0, say=lambda text: None)
    finals = [fit(hook, units).get_weights() for units in (1, 2)]
    finals.append(fit(copy.deepcopy(hook), 3).get_weights())  # as tuners make a copy a trial
    next_run.close_all()
    server.ends_well()
    runs = settings(server)
    assert [run["fit"] for run in runs] == [1, 2, 3]
    assert {run["series"] for run in runs} == {runs[0]["id"]} and all(run["ended"] for run in runs)
    for number, final in enumerate(finals, 1):
        kept = wbsp.read_run(server.cwd / "runs" / "pcc" / f"run-{number:03}")
        assert kept.summary["reason"] == "all workers finished"
        assert final[0].shape == (4, number)
        lines = (kept.folder / "console.log").read_text()
        assert f"run-{number:03}" in lines and "stopped: all workers finished" in lines
        assert lines.count("worker 0 joined") == 1
    assert len(server.find("the files of this run are in .*/run-00[1-3]")) == 3
    assert len(server.find("listening")) == 1 and not server.find("refused")
    assert "processes of all workers have ended" in server.lines[-1]


def test_a_worker_that_has_fewer_fits_than_the_others_is_not_waited_for(jobs):
    server = jobs.server(series=True).listens()
    workers = [script(jobs, server.address, 0, 3), script(jobs, server.address, 1, 2)]
    for worker in workers:
        worker.ends_well()
    server.ends_well()
    first, second = ([line for line in worker.lines if line.startswith("final")]
                     for worker in workers)
    assert first[:2] == second and len(first) == 3
    assert len(settings(server)) == 3
    assert not server.find("missing|it never joined")
    assert server.find("starting with 1 of 2 workers: the processes of the others have ended")


def test_a_process_that_is_killed_between_two_fits_is_waited_for_and_named(jobs):
    port = free_port()
    workers = [script(jobs, f"localhost:{port}", worker, 1, "sleeps") for worker in range(2)]
    for worker in workers:
        worker.until("imported")
    server = jobs.server("--connect_timeout=10", series=True, port=port)
    for worker in workers:
        worker.until("sleeps")
    server.until("waiting for the next fit of worker 0, 1, or the end of its process; the files of "
                 "that run will be in .*/run-002")
    for worker in workers:
        worker.kill()
    server.ends_well()
    assert server.find(r"lost worker.* between two fits: no reconnection within 10 s")
    assert len(settings(server)) == 1


def test_a_late_worker_skips_the_ended_fit_and_the_server_waits_for_its_process(jobs):
    server = jobs.server("--connect_timeout=5", series=True).listens()
    said = []
    hook = wbsp.SyncCallback(server.address, 1, say=said.append)
    hook.connect()
    other = script(jobs, server.address, 0, 1)
    server.until("starting with 1 of 2 workers")
    other.ends_well()
    late = fit(hook)
    weights = [weight.tobytes().hex() for weight in late.get_weights()]
    assert other.find("^final 0") == [f"final 0 {weights}"], "it has what the others trained"
    assert any("connecting again for the server's next one" in line for line in said), said
    server.until("waiting for the next fit of worker")
    next_run.close_all()
    server.ends_well()
    assert "processes of all workers have ended" in server.lines[-1]
    assert len(settings(server)) == 1


def test_a_server_that_died_between_two_fits_is_restarted(jobs):
    server = jobs.server(workers=1, series=True).listens()
    hook = wbsp.SyncCallback(server.address, 0, say=lambda text: None)
    fit(hook)
    server.until("waiting for the next fit")
    server.kill()
    port = int(server.address.split(":")[1])
    again = jobs.server("--resume", workers=1, series=True, port=port).listens()
    fit(hook, 2)
    next_run.close_all()
    again.ends_well()
    runs = settings(again)
    assert [run["fit"] for run in runs] == [1, 2]
    assert runs[1]["series"] == runs[0]["id"]


def test_a_closed_callback_is_no_reason_to_wait(jobs):
    server = jobs.server(workers=1, series=True).listens()
    hook = wbsp.SyncCallback(server.address, 0, say=lambda text: None)
    fit(hook)
    hook.close()
    server.ends_well()
    assert len(settings(server)) == 1


def test_a_server_of_one_run_ends_with_it_and_the_next_fit_finds_no_server(jobs):
    server = jobs.server(workers=1).listens()
    said = []
    hook = wbsp.SyncCallback(server.address, 0, say=said.append, connect_timeout=1)
    fit(hook)
    server.ends_well()
    with pytest.raises(TransportError, match="no server answered"):
        fit(hook)


@pytest.mark.skipif(sys.platform != "linux", reason="forks as Linux does")
def test_a_child_that_is_forked_between_two_fits_has_no_part_in_them(jobs):
    server = jobs.server(workers=1, series=True).listens()
    hook = wbsp.SyncCallback(server.address, 0, say=lambda text: None)
    fit(hook)
    server.until("waiting for the next fit")
    if (child := os.fork()) == 0:
        next_run.close_all()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    fit(hook, 2)
    next_run.close_all()
    server.ends_well()
    assert len(settings(server)) == 2


READER = textwrap.dedent("""
    import pathlib, sys, time, wbsp
    for version in wbsp.versions(sys.argv[1]):
        if version.last:
            print("evaluates fit", version.fit, flush=True)
            while version.fit == 2 and not pathlib.Path("go").exists():
                time.sleep(0.05)
            version.report(score=1.0)
            print("last of fit", version.fit, version.run, version._saved.layout[0].shape,
                  flush=True)
    print("over", flush=True)
    """)


def test_an_evaluator_follows_the_runs_of_a_series_and_ends_with_the_server(jobs):
    server = jobs.server("--best=score", workers=1, series=True).listens()
    (jobs.folder / "read.py").write_text(READER)
    reader = jobs.start("reader", "read.py", server.address, fork=forked.WBSP)
    server.until("a process at .* evaluates versions")
    worker = script(jobs, server.address, 0, 2)
    reader.until("evaluates fit 2")
    worker.ends_well()  # no process waits for who evaluates, and the server for no process
    (jobs.folder / "go").touch()
    for job in (server, reader):
        job.ends_well()
    assert not server.find("between two fits")
    runs = settings(server)
    assert reader.find("^last") == [f"last of fit {fit} {runs[fit - 1]['id']} (4, {fit})"
                                    for fit in (1, 2)]
    for number in (1, 2):
        assert (server.cwd / f"runs/pcc/run-{number:03}/best.safetensors").exists()
    assert reader.find("^over$")


@pytest.mark.parametrize("when", ["between", "within"])
def test_a_fit_after_its_server_was_ended_is_refused_at_once(jobs, when):
    server = jobs.server(workers=1, series=True).listens()
    said = []
    hook = wbsp.SyncCallback(server.address, 0, say=said.append, connect_timeout=3600.0)

    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if when == "within" and batch == 2:
                server.signal(signal.SIGINT)
                server.until("SIGINT")

    fit(hook, 1, Ends())
    if when == "between":
        server.until("waiting for the next fit")
        server.signal(signal.SIGINT)
    assert server.ends() == 130
    for _ in range(2):
        with pytest.raises(TransportError, match="interrupted by SIGINT") as refusal:
            fit(hook)
        assert "\n" not in str(refusal.value)
    port = int(server.address.split(":")[1])
    again = jobs.server(workers=1, port=port).listens()
    fit(hook)
    again.ends_well()


SHARED = textwrap.dedent("""
    import json, pathlib, time, keras, numpy as np, wbsp
    x = np.random.default_rng(0).normal(size=(160, 4)).astype("float32")
    hook = wbsp.SyncCallback()
    data = hook.examples(lambda i: (x[i], x[i, :1]), n=160, batch_size=16)
    class Holds(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            print("holds", flush=True)
            while not pathlib.Path("go").exists():
                time.sleep(0.05)
    for fit in range(2):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        history = model.fit(data, epochs=2, steps_per_epoch=hook.UNTIL_TOLD, verbose=0,
                            validation_data=(x, x[:, :1]), callbacks=[hook, *[Holds()] * fit])
        print("fit", fit, model.get_weights()[0].tobytes().hex(), flush=True)
        print("history", json.dumps(history.history), flush=True)
    """)


def test_a_restarted_worker_skips_the_fits_that_have_ended(jobs):
    server = jobs.server(series=True).listens()
    (jobs.folder / "shared.py").write_text(SHARED)

    def start(worker):
        return jobs.start(f"worker{worker}", "shared.py", fork=forked.KERAS,
                          WBSP_SERVER=server.address, WBSP_WORKER_INDEX=str(worker))

    stays, dies = start(0), start(1)
    dies.until("^holds")
    dies.kill()
    again = start(1)
    again.until("fit 1 of this process's server has ended: showing one batch")
    again.until("^holds")
    (jobs.folder / "go").touch()
    for job in (stays, again, server):
        job.ends_well()
    assert stays.find("^fit") == again.find("^fit") and len(again.find("^fit")) == 2
    first = server.cwd / "runs" / "pcc" / "run-001"
    events = map(json.loads, (first / "events.jsonl").read_text().splitlines())
    recorded = {event["epoch"]: event["values"]["val_loss"] for event in events
                if event["kind"] == "measured"}
    history = json.loads(again.find("^history")[0].partition(" ")[2])
    assert dict(zip(history["val_epoch"], history["val_loss"], strict=True)) == {
        epoch + 1: loss for epoch, loss in recorded.items()}
    assert len(settings(server)) == 2


def test_shards_follow_their_server_from_run_to_run_and_end_with_it(jobs):
    port = free_port()
    shard = jobs.shard(port)
    server = jobs.server(f"--shards=localhost:{port}", workers=1, series=True).listens()
    hook = wbsp.SyncCallback(server.address, 0, say=lambda text: None)
    for units in (1, 2):
        fit(hook, units)
    until(lambda: len(shard.find("following the server of run")) == 3,
          "the shard to follow the run that will not begin, too")
    next_run.close_all()
    server.ends_well()
    shard.ends_well()
    assert [run["fit"] for run in settings(server)] == [1, 2]


def test_a_standby_follows_its_server_from_run_to_run_and_takes_over_in_any(jobs):
    ports = free_port(), free_port()
    server = jobs.server(workers=1, series=True, port=ports[0]).listens()
    standby = jobs.server(f"--standby_of={server.address}", workers=1, series=True, port=ports[1])
    hook = wbsp.SyncCallback(f"{server.address},localhost:{ports[1]}", 0, say=lambda text: None)

    class Kills(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                until(lambda: len(standby.find("holding version")) == 2, "a copy of this run")
                server.kill()

    server.until("standby at")
    fit(hook)
    standby.until("the run has ended")
    fit(hook, 2, Kills())
    fit(hook, 3)
    next_run.close_all()
    standby.ends_well()
    runs = settings(standby, "pcc-standby")
    assert [run["fit"] for run in runs] == [1, 2, 3]
    assert all(run["ended"] for run in runs)
    assert {run["series"] for run in runs} == {settings(server)[0]["id"]}
    assert len(standby.find("taking over from")) == 1
    assert same_final_version(server, standby)  # of fit 1: it is kept at the standby


def test_a_standby_of_a_series_ends_with_it(jobs):
    server = jobs.server(workers=1, series=True).listens()
    standby = jobs.server(f"--standby_of={server.address}", workers=1, series=True)
    server.until("standby at")
    fit(wbsp.SyncCallback(server.address, 0, say=lambda text: None))
    next_run.close_all()
    server.ends_well()
    standby.ends_well()
    assert standby.find("the run has ended: no other run follows")
    assert not standby.find("taking over from")
    kept, = settings(standby, "pcc-standby")  # nothing of a fit that never began
    assert kept["fit"] == 1 and kept["ended"]
    assert same_final_version(server, standby)
