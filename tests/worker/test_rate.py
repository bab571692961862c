"""Smaller batches under `auto`, in real runs: each step's rate goes with them, and the loop's own
is put back."""

import time

import numpy as np
import pytest
from back_ends import ON_TORCH
from jobs import ROOT, both, until

import wbsp

jnp = pytest.importorskip("jax.numpy")
pytestmark = pytest.mark.usefixtures("process_ends")

N, BATCH, EPOCHS = 200, 8, 5


def halving(jobs, *flags, **more):
    return jobs.server(*flags, sync="halving:Halving", PYTHONPATH=str(ROOT / "tests/helpers"),
                       **more).listens()


def worker(server, index, values, say=lambda text: None, **given):
    return wbsp.Worker(values, N, BATCH, epochs=EPOCHS, address=server.address, worker_index=index,
                       say=say, **given)


def train(server, index, given, said):
    """Return examples of a step -> factors of its rate, in the order of the steps."""
    found = []
    with worker(server, index, {"w": jnp.zeros(4)}, said.append, **given) as w:
        values = w.values
        for _ in w.epochs():
            for indices in w.indices():
                found.append((indices.size, w.rate_scale))
                time.sleep(0.002)
                values = w.step(0.5, values)
    return found


def test_half_the_batch_is_trained_at_the_root_of_half_the_rate_with_a_line(jobs):
    server = halving(jobs)
    said = [[], []]
    runs = both(*((train, server, index, {"optimizer": "adam"}, said[index])
                  for index in range(2)))
    server.ends_well()
    for found, lines in zip(runs, said, strict=True):
        assert found[0] == (8, 1.0) and found[-1][1] == 0.5 ** 0.5
        assert {factor for size, factor in found if size > 4} == {1.0}
        [line] = [line for line in lines if "examples a step from here on" in line]
        assert line.endswith("4 examples a step from here on: for a test. Its rate is 0.707 times "
                             "the script's (--sync_option=batch=keep leaves both)")
    told = [(event["worker"], event["batch"], event["why"]) for event in server.events("batch")]
    assert sorted(told) == [(0, 4, "for a test"), (1, 4, "for a test")]
    assert sum(event["samples"] for event in server.events("accept")) == N * EPOCHS


@pytest.mark.parametrize("option, given, line", [
    (["--sync_option=batch=keep"], {"optimizer": "adam"}, None),
    ([], {}, "multiply the loop's rate")])
def test_the_scripts_batch_stays_where_it_is_kept_or_the_loop_cannot_set_its_rate(
        jobs, option, given, line):
    server = halving(jobs, *option)
    said = [[], []]
    runs = both(*((train, server, index, given, said[index]) for index in range(2)))
    server.ends_well()
    assert all({factor for _, factor in found} == {1.0} for found in runs)
    assert all(size == 8 for found in runs for size, _ in found[:20])
    assert not server.events("batch")
    for lines in said:
        assert [line in one for one in lines] == [True] if line else not lines


@ON_TORCH
@pytest.mark.parametrize("kind, factor", [("SGD", 1.0), ("AdamW", 0.5 ** 0.5)])
def test_pytorchs_optimizers_are_found_and_their_own_rates_stay(jobs, kind, factor):
    import torch

    def train(index):
        model, rates = torch.nn.Linear(4, 1), []
        made = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1 / (1 + step))
        with worker(server, index, model) as w:
            seen = []
            hook = made.register_step_pre_hook(
                lambda one, args, kwargs: seen.append(one.param_groups[0]["lr"]))
            for _ in w.epochs():
                for indices in w.indices():
                    made.zero_grad()
                    model(torch.ones(indices.size, 4)).sum().backward()
                    rates.append(made.param_groups[0]["lr"])
                    made.step()
                    assert made.param_groups[0]["lr"] == rates[-1]
                    schedule.step()
                    time.sleep(0.002)
                    w.step(0.5)
            hook.remove()
        made.zero_grad()
        made.step()  # outside of the block
        return [one / own for one, own in zip(seen, rates, strict=True)]

    server = halving(jobs)
    for seen in both((train, 0), (train, 1)):
        assert seen[0] == 1.0 and seen[-1] == pytest.approx(factor)
    server.ends_well()


@ON_TORCH
def test_an_unknown_optimizer_keeps_the_scripts_batch_with_a_line(jobs):
    import torch

    def train(index):
        model, said = torch.nn.Linear(4, 1), []
        made = torch.optim.Adadelta(model.parameters(), lr=0.1)
        with worker(server, index, model, said.append) as w:
            for _ in w.epochs():
                for indices in w.indices():
                    made.zero_grad()
                    model(torch.ones(indices.size, 4)).sum().backward()
                    made.step()
                    w.step(0.5)
        return [line for line in said if "with a plain rate, and it has Adadelta" in line]

    server = halving(jobs)
    assert all(len(lines) == 1 for lines in both((train, 0), (train, 1)))
    server.ends_well()
    assert not server.events("batch")


def test_a_bad_name_of_an_optimizer_is_refused_in_a_line():
    with pytest.raises(ValueError, match="^optimizer='lamb': it must be 'adam', or left out"):
        wbsp.Worker({"w": jnp.zeros(4)}, N, BATCH, optimizer="lamb")


@pytest.mark.slow
def test_a_fit_takes_its_step_at_the_scaled_rate_and_its_callbacks_see_the_scripts(
        jobs, monkeypatch):
    import keras

    from wbsp.worker.rate import StepRate

    monkeypatch.setattr(StepRate, "factor", 0.5)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(1.0), lambda y, found: keras.ops.mean(found))
    rates, biases = [], []

    class Rates(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = 0.25  # as a schedule does

        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))
            biases.append(float(model.layers[-1].get_weights()[1][0]))

    server = jobs.server(sync="auto", workers=1).listens()
    hook = wbsp.SyncCallback(server.address, 0, say=lambda text: None)
    x = np.zeros((N, 4), np.float32)
    data = hook.examples(lambda indices: (x[indices], x[indices, :1]), N, BATCH)
    model.fit(data, epochs=1, verbose=0, steps_per_epoch=hook.UNTIL_TOLD,
              callbacks=[Rates(), hook])
    server.ends_well()
    assert set(rates) == {0.25} and len(rates) == N / BATCH
    assert np.diff([0.0, *biases]) == pytest.approx(-0.125)


@pytest.mark.slow
def test_a_fit_that_an_error_ends_in_a_step_leaves_the_scripts_rate(jobs, monkeypatch):
    import keras

    from wbsp.worker.rate import StepRate

    def fails(y, found):
        calls.append(0)
        if len(calls) == 3:
            raise ArithmeticError("a step fails")
        return keras.ops.mean(found)

    monkeypatch.setattr(StepRate, "factor", 0.5)
    calls, x = [], np.zeros((N, 4), np.float32)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.25), fails, run_eagerly=True)
    server = jobs.server(sync="auto", workers=1).listens()
    hook = wbsp.SyncCallback(server.address, 0, say=lambda text: None)
    data = hook.examples(lambda indices: (x[indices], x[indices, :1]), N, BATCH)
    with pytest.raises(ArithmeticError):
        model.fit(data, epochs=1, verbose=0, steps_per_epoch=hook.UNTIL_TOLD, callbacks=[hook])
    hook.close()
    until(lambda: float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)) == 0.25,
          "the rate of the script")


@pytest.mark.slow
@pytest.mark.parametrize("optimizer, word", [
    ("Adadelta", "and it has Adadelta"), ("schedule", "CosineDecay in the optimizer")])
def test_a_fit_whose_rate_cannot_be_set_prints_that(jobs, optimizer, word):
    import keras

    found = (keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 100))
             if optimizer == "schedule" else getattr(keras.optimizers, optimizer)(0.1))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(found, "mse")
    server, said = jobs.server(sync="auto", workers=1).listens(), []
    hook = wbsp.SyncCallback(server.address, 0, say=said.append)
    x = np.zeros((N, 4), np.float32)
    data = hook.examples(lambda indices: (x[indices], x[indices, :1]), N, BATCH)
    model.fit(data, epochs=1, verbose=0, steps_per_epoch=hook.UNTIL_TOLD, callbacks=[hook])
    server.ends_well()
    assert len([line for line in said if word in line]) == 1
