"""Real training in virtual time: the network is shared, nothing else is."""

import itertools
import os

import forked
import keras
import numpy as np
import pytest
from jobs import ROOT, Jobs

from wbsp.figures import draw, find_runs
from wbsp.runlog.reader import read_run
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.workloads.keras import KerasWorkload, share
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import create

BATCH = 8


def build(seed=0):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(12, "relu"),
                             keras.layers.BatchNormalization(), keras.layers.Dropout(0.3),
                             keras.layers.Dense(3)])


def batches(worker):
    draw = np.random.default_rng(worker)
    x = draw.standard_normal((64, 6), np.float32)
    y = (np.abs(x[:, 0]) + x[:, 1] > 1).astype(np.int32) + (x[:, 2] > 0)
    return itertools.cycle([(x[i:i + BATCH], y[i:i + BATCH]) for i in range(0, 64, BATCH)])


def examples(stream):
    """(start, count) -> a batch of an endless stream of three features drawn by position."""
    def piece(start, count):
        draws = [np.random.default_rng([stream, p]).standard_normal(6) for p in range(
            start, start + count)]
        x = np.array(draws, np.float32)
        return x, (x[:, 0] > 0).astype(np.int32)
    return piece


def compiled(optimizer="adam"):
    model = build()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=["accuracy"])
    return model


def workload(workers, optimizer="adam"):
    network = share(compiled(optimizer), next(iter(batches(0))))
    return KerasWorkload(network, build(), workers, batches, BATCH,
                         lambda worker: examples(99 if worker is None else worker))


def fitted(steps, worker=0, optimizer="adam"):
    """Flat float variables and losses after a plain Keras fit."""
    model, losses = compiled(optimizer), []

    class Losses(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            losses.append(logs["loss"])
    model.fit((batch for batch in batches(worker)), epochs=steps, steps_per_epoch=1, verbose=0,
              callbacks=[Losses()])
    flat = [np.asarray(v).ravel() for v in [*model.trainable_weights, *model.non_trainable_weights]
            if "float" in v.dtype]
    return np.concatenate(flat), losses


def test_a_worker_among_others_trains_as_if_alone():
    shared = workload(workers=3)
    losses = {worker: [] for worker in range(3)}
    for worker in [0, 1, 1, 2, 0, 2, 0, 1, 2, 2, 0, 1]:
        samples, loss = shared.step(worker)
        assert samples == BATCH
        losses[worker].append(loss)
    for worker in range(3):
        x, alone = fitted(4, worker)
        np.testing.assert_allclose(shared.initial() + shared.cut(worker), x, atol=1e-5)
        assert losses[worker] == pytest.approx(alone, abs=1e-5)


def test_a_directed_batch_size_trains_like_a_fit_on_the_same_examples():
    shared, model = workload(workers=2), compiled()
    sizes = [3, 8, 1, 20, 5]
    start = 40
    for size in sizes:
        samples, loss = shared.step(1, size, start)
        shared.step(0, size + 1, 7)  # by another worker: changes nothing
        alone = model.train_on_batch(*examples(99)(start, size), return_dict=True)["loss"]
        model.reset_metrics()
        assert (samples, loss) == (size, pytest.approx(float(alone), abs=1e-5))
        start += size
    flat = [np.asarray(v).ravel() for v in [*model.trainable_weights, *model.non_trainable_weights]
            if "float" in v.dtype]
    np.testing.assert_allclose(shared.initial() + shared.cut(1), np.concatenate(flat), atol=1e-5)


def test_a_size_without_a_place_continues_in_the_workers_own_stream():
    one, again = workload(workers=2), workload(workers=2)
    for size in (4, 9):
        one.step(1, size)
    for size in (6, 7):
        one.step(0, size)
    asked = []
    again._stream = lambda worker: lambda *piece: asked.append((worker, *piece)) or (
        examples(worker)(*piece))
    for worker, size in ((0, 6), (1, 4), (0, 7), (1, 9)):
        again.step(worker, size)
    assert asked == [(0, 0, 6), (1, 0, 4), (0, 6, 7), (1, 4, 9)]
    for worker in range(2):
        np.testing.assert_allclose(one.cut(worker), again.cut(worker), atol=1e-6)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX compiles each size")
def test_batches_of_all_sizes_are_traced_once():
    traced = []

    class Traced(keras.Sequential):
        def train_step(self, batch):
            traced.append(batch[0].shape)
            return super().train_step(batch)
    model = Traced(build().layers)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    network = share(model, next(iter(batches(0))))
    for size in range(1, 30):
        network.step_on(examples(0)(0, size))
    assert len(traced) == 1 and traced[0][0] is None


def test_an_evaluation_between_two_steps_changes_nothing():
    plain, watched = workload(workers=1), workload(workers=1)
    test_set = list(itertools.islice(batches(9), 3))
    before = watched.evaluate(watched.initial(), test_set)
    for _ in range(4):
        plain.step(0)
        watched.step(0)
        assert watched.evaluate(watched.initial(), test_set) == before
    np.testing.assert_array_equal(plain.cut(0), watched.cut(0))


@pytest.mark.parametrize("how", ["replace", "rebase"])
def test_adoption_and_cuts_keep_the_contract(how):
    one = workload(workers=2)
    one.step(0)
    first = one.cut(0)
    one.step(0)
    one.step(1)  # takes the network in between
    version = one.initial() + np.float32(0.5)
    one.adopt(0, version, how)
    uncut = one.cut(0)
    again = workload(workers=2)
    again.step(0)
    again.cut(0)
    again.step(0)
    np.testing.assert_allclose(uncut, again.cut(0) if how == "rebase" else 0, atol=1e-6)
    assert np.abs(first).max() > 1e-4
    one.step(0)  # from where the adoption put it
    assert 0 < np.abs(one.cut(0)).max() < 0.2


def test_one_worker_under_bsp_is_plain_keras():
    one = workload(workers=1, optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    cluster = Cluster(create("bsp"), [Machine(constant(1.0))], one, stop_samples=6 * BATCH)
    cluster.run()
    x, _ = fitted(6, optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    np.testing.assert_allclose(cluster.engine.store.latest.vector, x, atol=1e-5)


def test_a_second_run_on_the_network_starts_again():
    network = share(compiled(), next(iter(batches(0))))
    cuts = []
    for _ in range(2):
        run = KerasWorkload(network, build(), 1, batches, BATCH)
        for _ in range(3):
            run.step(0)
        cuts.append(run.cut(0))
    np.testing.assert_array_equal(*cuts)


# The command.

SMALL = ("--model=small", "--dataset=shapes10", "--batch_size=32", "--check_period=1s",
         "--test_images=500", "--bandwidth=100Mbit", "--latency=1ms", "--jitter=0.1",
         "--heterogeneity=H1", "--nofigures", "--out=o")
ON_JAX = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*")
            if path.is_file()}


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The runs of the same command, on all cores and on one: a folder each."""
    folders = [tmp_path_factory.mktemp(name) for name in ("all", "one")]
    flags = "-m", "wbsp.simulate", *SMALL, "--sync=pcc,lbbsp,saps", "--max_steps=60"
    with Jobs(folders[0]) as every, Jobs(folders[1]) as one:
        every.start("simulate", *flags, fork=forked.KERAS).ends_well()
        one.run("simulate", "taskset", "-c", min(os.sched_getaffinity(0)), "python", *flags
                ).ends_well()
    return [folder / "o" for folder in folders]


@pytest.mark.slow
@pytest.mark.long
def test_a_run_repeats_bit_by_bit_on_one_core_or_all(twice, tmp_path):
    every, one = map(contents, twice)
    assert any("tfevents" in path.name for path in every)
    assert {path.parts[0] for path in every} == {"pcc", "lbbsp", "saps"}
    assert every == one
    run = read_run(twice[0] / "pcc/run-001")
    assert run.evaluations.accuracy[-1] > 0.2  # ten classes: it learns
    assert run.summary["accuracy"] == run.evaluations.accuracy[-1]
    files = draw(find_runs([run.folder]), tmp_path / "figures", target=0.2)
    assert {"curves.png", "time_to_target.png"} <= {path.name for path in files}


@pytest.mark.slow
@pytest.mark.long
def test_the_server_directs_the_batches_of_a_run(twice):
    run = read_run(twice[0] / "lbbsp/run-001")
    assert run.settings["options"]["batch"] == 32
    sizes = [e["samples"] for e in run.events if e["kind"] == "accept"]
    assert [x + y for x, y in zip(sizes[::2], sizes[1::2], strict=True)] == [64] * 30
    assert min(sizes) < 32 < max(sizes)  # of the one that sleeps, and of the other
    run = read_run(twice[0] / "saps/run-001")
    accepts = [e for e in run.events if e["kind"] == "accept"]
    assert {e["samples"] / e["steps"] for e in accepts} == {32 / 4}


@pytest.mark.slow
def test_advice_ranks_all_models_with_reasons(jobs):
    job = jobs.start("advise", "-m", "wbsp.simulate", f"--advise={ROOT}/scripts/clusters/h1.toml",
                     "--max_steps=150", "--batch_size=16", "--target_accuracy=0.2",
                     "--check_period=1s", "--test_images=200", "--sync=bsp,asp,pcc:weight=work",
                     "--nofigures", "--verbose", "--out=o", fork=forked.KERAS)
    job.ends_well()
    [verdict] = job.find("^it (may pay|pays|does not pay): ")
    said = job.lines[job.lines.index(verdict):]
    assert said[4:6] == ["", "All models at batch 16:"], "four lines, and then the rest"
    end = said.index("", 7)
    rows = [line.split(" | ") for line in said[:end] if line.startswith("| ")][2:]
    assert {row[1] for row in rows} == {"bsp", "asp", "pcc weight=work",
                                        "the fastest machine alone"}
    times = [float(row[2]) for row in rows if row[2] != "not reached"]
    assert times == sorted(times) and len(times) >= 2
    assert rows[-1][1] == "bsp"  # which waits for the sleeper
    reasons = job.find("^- ")
    assert len(reasons) == 4
    assert "A bound of theory" in job.text and not job.find("^Take ")
    sizes = [line.split(" | ") for line in said[end:] if line.startswith("| ")][2:]
    assert [row[:2] for row in sizes] == [["| 16", "0.1"], ["| 8", "0.05"]]
    assert all("mini-batches/s; workers compute" in line and "versions old" in line
               for line in reasons)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="this runs the others on JAX")
def test_the_same_tests_pass_on_jax(jobs):
    job = jobs.start("pytest", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow",
                     f"--basetemp={jobs.folder / 'inner'}", __file__, **ON_JAX)
    job.ends_well()
    assert job.find("8 passed, 1 skipped")


def run_on_jax(folder):
    """Simulate a run on JAX; return the folder of its files."""
    with Jobs(folder) as jobs:
        run = jobs.start("simulate", "-m", "wbsp.simulate", *SMALL, "--sync=pcc", "--max_steps=60",
                         **ON_JAX)
        run.ends_well()
        assert not run.find("cuda")  # messages of TensorFlow, which Keras imports
    return folder / "o"


@pytest.fixture(scope="module")
def on_jax(tmp_path_factory):
    return run_on_jax(tmp_path_factory.mktemp("jax"))


@pytest.mark.slow
@pytest.mark.long
def test_a_run_on_jax_learns(on_jax):
    run = read_run(on_jax / "pcc/run-001")
    assert run.evaluations.accuracy[-1] > 0.2  # ten classes


@pytest.mark.slow
@pytest.mark.long
def test_a_run_on_jax_repeats_bit_by_bit(on_jax, tmp_path):
    assert contents(on_jax) == contents(run_on_jax(tmp_path))


@pytest.mark.slow
def test_another_back_end_is_refused_in_one_line(jobs):
    job = jobs.start("simulate", "-m", "wbsp.simulate", *SMALL, "--max_steps=6",
                     KERAS_BACKEND="torch")
    assert job.ends() == 1
    assert job.lines == ["simulate: KERAS_BACKEND=torch: simulated workers train on tensorflow or "
                         "jax; choose one, or --model=timing"]


def test_a_step_may_have_a_rate_that_the_run_decides():
    def network():
        keras.utils.set_random_seed(1)
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])

    model = network()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rates = {0: 0.0, 1: 0.1, 2: 0.2}
    work = KerasWorkload(share(model, next(iter(batches(0)))), network(), 3, lambda worker:
                         batches(0), BATCH, rate=rates.__getitem__)
    still, one, two = (work.step(worker) and work.cut(worker) for worker in range(3))
    assert not still.any() and one.any()
    np.testing.assert_allclose(two, 2 * one, rtol=1e-5, atol=1e-7)
