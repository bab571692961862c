"""Several fits in a process that lives on: each is a run; the server ends with the last process."""

import copy
import json
import os
import sys
import textwrap

import keras
import numpy as np
import pytest
from jobs import free_port

import wbsp
from wbsp.worker import next_run
from wbsp.worker.errors import TransportError

pytestmark = pytest.mark.slow  # TensorFlow takes its seconds to start

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


@pytest.fixture(autouse=True)
def process_ends():
    """What the end of this process would do."""
    yield
    next_run.close_all()


def fit(hook, units=1):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(X, np.repeat(Y, units, 1), batch_size=8, verbose=0, callbacks=[hook])
    return model


def script(jobs, address, worker, *arguments):
    path = jobs.folder / "train.py"
    path.write_text(SCRIPT)
    return jobs.start(f"worker{worker}", path, *arguments, WBSP_SERVER=address,
                      WBSP_WORKER_INDEX=str(worker), CUDA_VISIBLE_DEVICES="")


def settings(server):
    """Of each run that has a folder."""
    folder = server.cwd / "runs" / "pcc"
    return [json.loads((run / "run.json").read_text()) for run in sorted(folder.glob("run-*"))]


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
    assert server.find("waiting for the next fit of worker 0, or the end of its process")
    assert not server.find("refused")
    assert "processes of all workers have ended" in server.lines[-1]


def test_who_has_fewer_fits_than_the_others_is_not_waited_for(jobs):
    server = jobs.server(series=True).listens()
    workers = [script(jobs, server.address, 0, 3), script(jobs, server.address, 1, 2)]
    for worker in workers:
        worker.ends_well()
    server.ends_well()
    first, second = ([line for line in worker.lines if line.startswith("final")]
                     for worker in workers)
    assert first[:2] == second and len(first) == 3
    assert len(settings(server)) == 3
    assert not server.find("missing|it never came")
    assert server.find("starting with 1 of 2 workers: the processes of the others have ended")


def test_a_process_that_is_killed_between_two_fits_is_waited_for_and_named(jobs):
    port = free_port()
    workers = [script(jobs, f"localhost:{port}", worker, 1, "sleeps") for worker in range(2)]
    for worker in workers:
        worker.until("imported")
    server = jobs.server("--connect_timeout=10", series=True, port=port)
    for worker in workers:
        worker.until("sleeps")
    server.until("waiting for the next fit of worker 0, 1")
    for worker in workers:
        worker.kill()
    server.ends_well()
    assert server.find(r"worker 0, 1: lost between two fits, and not back within 10 s")
    assert len(settings(server)) == 1


def test_a_server_that_died_between_two_fits_is_started_again(jobs):
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


def test_a_server_of_one_run_ends_with_it_and_the_next_fit_says_that_none_answers(jobs):
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
