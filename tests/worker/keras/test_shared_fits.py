"""Fits of unequal workers on shared data, each on its back end: what is in the model, and who says
when it ends."""

import json
import math
import signal
import threading
from types import SimpleNamespace

import forked
import numpy as np
import pytest
from back_ends import JAX_AT_NIGHT, TORCH
from conservation import logged
from counting_worker import Plan
from docs_code import python_of
from jobs import ROOT, free_port, until
from one_an_example import dense

import wbsp
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.testing.once import Pushes, assert_each

pytestmark = pytest.mark.slow  # a back end takes its seconds to start

WORKER = ROOT / "tests/helpers/counting_worker.py"
N, BATCH, EPOCHS = 500, 16, 3


@pytest.fixture
def worker(jobs):
    """Starts a worker of N examples, with further arguments of a test."""
    def start(server, index, back_end="tensorflow", **plan):
        plan = {"n": N, "batch": BATCH, "epochs": EPOCHS, **plan}
        return jobs.start(f"worker{index}", WORKER,
                          Plan(server.address, index, str(jobs.folder), **plan).text,
                          fork=forked.KERAS if back_end == "tensorflow" else "",
                          KERAS_BACKEND=back_end)
    return start


def trained(server, folder, n=N):
    """How often each example is in the run's accepted pushes: [n]."""
    weights, total = logged(server.folder), np.zeros(n)
    for path in folder.glob("cuts-*.jsonl"):
        worker = int(path.stem.rpartition("-")[2])
        cuts = {seq: dense(n, *cut) for seq, *cut in map(json.loads, path.read_text().splitlines())}
        known = {seq: weight for seq, weight in weights.get(worker, {}).items() if seq in cuts}
        total += Pushes(path.stem, cuts, known).plain
    return np.round(total)


def validated(history):
    """The results of a worker's history: epoch of the run, from 0 -> loss."""
    epochs, losses = (history.get(name, []) for name in ("val_epoch", "val_loss"))
    assert len(epochs) == len(losses) in (0, len(history["loss"])), "one for each epoch"
    return {epoch - 1: loss for epoch, loss in zip(epochs, losses, strict=True)
            if not math.isnan(epoch)}


def told(job, what):
    """The JSON that the worker has printed after this word."""
    (line,) = job.find(f"^{what} ")
    return json.loads(line.partition(" ")[2])


@pytest.mark.parametrize("sync, back_end", [
    ("pcc", "tensorflow"), pytest.param("pcc", *JAX_AT_NIGHT.values, marks=JAX_AT_NIGHT.marks),
    pytest.param("pcc", *TORCH.values, marks=TORCH.marks),
    ("bsp", "tensorflow"), pytest.param("bsp", *JAX_AT_NIGHT.values, marks=JAX_AT_NIGHT.marks),
    pytest.param("bsp", *TORCH.values, marks=TORCH.marks)])
def test_each_example_is_in_the_model_once_an_epoch(jobs, worker, sync, back_end):
    server = jobs.server(sync=sync).listens()
    forms = {"pcc": ("pair", "dict"), "bsp": ("weighted", "pair")}[sync]
    workers = [worker(server, index, back_end, seconds=(0.01, 0.1)[index], form=forms[index])
               for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    assert_each(trained(server, jobs.folder), N, EPOCHS)
    finals = [np.load(jobs.folder / f"final-{index}.npy") for index in range(2)]
    assert finals[0].tobytes() == finals[1].tobytes()
    for job in workers:
        ended = told(job, "ended")
        assert ended["reason"] == f"all {EPOCHS} epochs are trained"
        assert (ended["done"], ended["of_all"]) == (1, 94), "1,500 examples / 16"
    fast = told(workers[0], "history")
    assert len(fast["loss"]) == EPOCHS and "ran out of data" not in workers[0].text


def test_a_worker_of_two_devices_trains_each_example_once_an_epoch(jobs, worker):
    server = jobs.server(workers=1).listens()
    for job in (worker(server, 0, devices=2), server):
        job.ends_well()
    assert_each(trained(server, jobs.folder), N, EPOCHS)
    assert (np.load(jobs.folder / "final-0.npy") == EPOCHS).all()


@pytest.mark.parametrize("back_end", ["tensorflow", JAX_AT_NIGHT, TORCH])
def test_the_examples_of_a_killed_worker_are_trained_by_others(jobs, worker, back_end):
    server = jobs.server(sync="pcc").listens()
    stays = worker(server, 0, back_end, seconds=0.02, hold_at=20, epochs=4)
    dies = worker(server, 1, back_end, seconds=0.05, die_at=8, epochs=4)
    assert dies.ends() == -9
    server.until("worker 1 (was|is) lost")
    again = worker(server, 1, back_end, seconds=0.05, epochs=4)
    server.until("worker 1 joined.*(again|back)|worker 1 joined", 60)
    until(lambda: len(server.events("join")) == 3, "worker 1 to join again")
    (jobs.folder / "go").touch()
    for job in (stays, again, server):
        job.ends_well()
    assert_each(trained(server, jobs.folder), N, 4)


@pytest.mark.parametrize("back_end", ["tensorflow", JAX_AT_NIGHT, TORCH])
def test_a_worker_that_joins_without_work_left_receives_the_final_version(jobs, worker, back_end):
    port = free_port()
    holds = worker(SimpleNamespace(address=f"localhost:{port}"), 0, back_end, epochs=1,
                   hold_end=True)
    holds.until("waiting for the server")
    server = jobs.server("--connect_timeout=5", port=port).listens()  # the other comes later
    holds.until("^epoch 0")
    late = worker(server, 1, back_end, epochs=1)
    late.until("no example of 1 epochs is left to train")
    until(lambda: late.find("^epoch 0"), "its fit to come to its end")
    (jobs.folder / "go").touch()
    for job in (holds, late, server):
        job.ends_well()
    assert_each(trained(server, jobs.folder), N)
    finals = [np.load(jobs.folder / f"final-{index}.npy") for index in range(2)]
    assert finals[0].tobytes() == finals[1].tobytes() == np.ones((N, 1), "float32").tobytes()
    assert "at the end of training" not in late.text
    assert not list(jobs.folder.glob("cuts-1.jsonl*"))[1:]


@pytest.mark.parametrize("how, reason", [
    ({"stop_at": 30}, "worker 0: enough"),
    ({"ends_at": 1}, "worker 0: a callback ended the training")],
    ids=["by a word", "by a callback"])
def test_any_worker_ends_the_run_for_all(jobs, worker, how, reason):
    server = jobs.server(sync="pcc").listens()
    workers = [worker(server, 0, seconds=0.02, epochs=200, **how),
               worker(server, 1, seconds=0.1, epochs=200)]
    for job in (*workers, server):
        job.ends_well()
    asked = float(workers[0].find("^stopping")[0].split()[1])
    for job in workers:
        ended = told(job, "ended")
        assert ended["reason"] == reason and ended["time"] - asked < 30
        assert ended["steps"] < 200
    total = trained(server, jobs.folder)
    assert set(total) <= {0, 1, 2, 3}


def validation_loss(values):
    """Of the model with these values, as Keras computes it, in batches of 32."""
    sizes = np.minimum(32, N - np.arange(N) // 32 * 32)
    return -(values.ravel() * sizes).sum() / N


def test_one_worker_validates_an_epochs_version_for_all(jobs, worker):
    server = jobs.server("--best=loss", sync="pcc").listens()
    workers = [worker(server, 0, seconds=0.05, validate=True, epochs=5, save=True),
               worker(server, 1, seconds=0.01, validate=True, epochs=5)]
    for job in (*workers, server):
        job.ends_well()
    results = [validated(told(job, "history")) for job in workers]
    measured = {event["epoch"]: event["values"]["val_loss"] for event in server.events("measured")}
    assert len(measured) == len(server.events("measured")) and 4 in measured, "each epoch once"
    assert {event["worker"] for event in server.events("measured")} == {1}, "by the fast worker"
    for result in results:
        assert result and all(measured[epoch] == loss for epoch, loss in result.items())
    whole = {event["epoch"] - 1: event["version"] for event in server.events("epoch")}
    found = {event["version"]: event["loss"] for event in server.events("evaluation")}
    for epoch, loss in measured.items():
        assert found[whole[epoch]] == loss, "what was validated is the first version with all of it"
    best = checkpoint.load(server.folder / "best.safetensors")
    assert best.state.version == whole[4]
    assert (best.vector == 5 / 2).all(), "pcc weighs an update 1/2"
    assert measured[4] == pytest.approx(validation_loss(best.vector), rel=1e-5)
    saved = {int(path.stem.partition("-")[2]): np.load(path)
             for path in jobs.folder.glob("epoch-*.npy")}
    assert saved, "worker 0 has not validated, and saves"
    for epoch, values in saved.items():
        assert measured[epoch] == pytest.approx(validation_loss(values), rel=1e-5)
    assert not list(server.folder.glob("version-*"))


def test_where_all_wait_for_a_validation_each_has_the_results_of_each_epoch(jobs, worker):
    server = jobs.server(sync="bsp").listens()  # under which one waits for a version meanwhile
    workers = [worker(server, index, seconds=(0.01, 0.05)[index], validate=True, waits=True)
               for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    assert_each(trained(server, jobs.folder), N, EPOCHS)
    measured = {event["epoch"]: event["values"]["val_loss"] for event in server.events("measured")}
    assert [*measured] == [*range(EPOCHS)] and len(server.events("measured")) == EPOCHS
    for epoch, loss in measured.items():
        whole = np.full(N, (epoch + 1) / 2)  # bsp weighs an update 1/2
        assert loss == pytest.approx(validation_loss(whole), rel=1e-5), "and nothing of the next"
    for job in workers:
        history = told(job, "history")
        assert validated(history) == measured


def test_no_worker_waits_for_one_that_dies_in_its_validation(jobs, worker):
    server = jobs.server(sync="pcc").listens()
    dies = worker(server, 0, seconds=0.01, validate=True, waits=True, die_validating=1)
    stays = worker(server, 1, seconds=0.2, validate=True, waits=True)
    assert dies.ends() == -9
    for job in (stays, server):
        job.ends_well()
    measured = server.events("measured")
    assert [event["epoch"] for event in measured] == [0, 1, 2]
    assert [event["worker"] for event in measured[1:]] == [1, 1]
    assert told(stays, "history")["val_epoch"] == [1, 2, 3]
    assert_each(trained(server, jobs.folder), N, EPOCHS)


def test_a_fit_without_a_validation_waits_for_none(jobs, worker):
    server = jobs.server(workers=1).listens()
    job = worker(server, 0, waits=True)
    assert job.ends() == 1
    assert job.find("validate='wait' has each worker wait.*give it validation_data, or leave")
    server.signal(signal.SIGINT)
    server.ends()


def test_the_rate_after_a_validation_is_sent_to_all(jobs, worker):
    server = jobs.server(sync="pcc").listens()
    workers = [worker(server, index, seconds=(0.01, 0.05)[index], validate=True, epochs=5,
                      plateau=True) for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    rates = server.events("learning_rate")
    assert [event["rate"] for event in rates] == [0.5 ** (n + 1) for n in range(len(rates))]
    assert 1 < len(rates) == len({event["epoch"] for event in rates})
    for job in workers:  # an epoch may end elsewhere as this worker's last one does
        assert told(job, "ended")["rate"] in [event["rate"] for event in rates[-2:]]


def test_an_evaluator_of_epochs_replaces_the_validation_of_all_workers(jobs, worker):
    server = jobs.server(sync="pcc").listens()
    versions, seen = wbsp.versions(server.address, at="epochs"), {}
    waits = threading.Thread(target=lambda: seen.update(
        (version.epoch, (version.number, version._saved.vector)) for version in versions
        if version.report(score=0.5 + (version.epoch or 0)) is None))
    waits.start()
    server.until("a process at .* evaluates versions")
    workers = [worker(server, index, seconds=0.03, validate=True, epochs=4, save=not index)
               for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    waits.join(30)
    whole = {event["epoch"] - 1: event["version"] for event in server.events("epoch")}
    assert 3 in seen and not waits.is_alive(), "and it ends with the server"
    for epoch, (number, vector) in seen.items():
        assert number == whole[epoch] and vector.min() >= (epoch + 1) / 2
    assert {event["worker"] for event in server.events("measured")} == {None}
    for job in workers:
        history = told(job, "history")
        assert "val_loss" not in history, "no worker has validated"
        assert [score for score in history["val_score"] if not math.isnan(score)] == [
            epoch - 0.5 for epoch in history["val_epoch"] if not math.isnan(epoch)]


def test_the_pages_function_reads_records_of_a_file_in_any_order(tmp_path, monkeypatch):
    import tensorflow as tf

    monkeypatch.chdir(tmp_path)
    pictures = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 1), np.uint8)
    with tf.io.TFRecordWriter("train.tfrecord") as file:
        for label, picture in enumerate(pictures):
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(
                    value=[tf.io.encode_png(picture).numpy()])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))}
            file.write(tf.train.Example(features=tf.train.Features(
                feature=features)).SerializeToString())
    page = {}
    exec(python_of("how-to/shared-data.md"), page)
    assert len(page["records"]) == 5
    images, labels = page["examples"](np.array([3, 0, 4]))
    assert (images.numpy() == pictures[[3, 0, 4]]).all() and labels.numpy().tolist() == [3, 0, 4]
    page["file"].close()


@pytest.mark.parametrize("back_end", ["tensorflow", JAX_AT_NIGHT, TORCH])
def test_the_same_data_serve_one_fit_after_the_other(jobs, worker, back_end):
    server = jobs.server(sync="pcc", series=True).listens()
    workers = [worker(server, index, back_end, epochs=2, fits=2, reads=0.02,
                      processes=2 * (index == 0 and back_end == "torch")) for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    for job in workers:
        assert len(job.find("^history ")) == 2
    if back_end == "tensorflow":
        summary = json.loads((server.folder / "summary.json").read_text())
        for worker in summary["workers"].values():
            seconds = worker["seconds"]
            assert seconds["data"] > 0.1 and not seconds.get("data or compute"), "it reads slowly"
    finals = [np.load(jobs.folder / f"final-{index}.npy") for index in range(2)]
    assert finals[0].tobytes() == finals[1].tobytes() and (finals[0] > 0).all()
