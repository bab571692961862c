"""`wbsp.Worker` around loops that count: a step on shared data raises the example's number by 1.

The workers are threads of the test, with a real server; what they train are arrays of JAX, which
a test of every commit has. What holds for each framework is in `tests/replica/test_values.py`, and
`test_every_loop.py`.
"""

import math
import re
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from back_ends import ON_TORCH
from jobs import both

import wbsp
from wbsp.wire.errors import TransportError
from wbsp.worker import next_run

jnp = pytest.importorskip("jax.numpy")
pytestmark = pytest.mark.usefixtures("process_ends")

N, BATCH = 100, 8


def worker(server, index=0, values=None, **given):
    values = {"counts": jnp.zeros(N)} if values is None else values
    given = {"say": lambda text: None, **given}
    return wbsp.Worker(values, address=server.address, worker_index=index, **given)


def count(server, index, seconds=0.0, epochs=3, at_step=lambda w, step: None, **given):
    """Train as one of two unequal workers; the counts, and the run's epochs."""
    seen, step = [], 0
    with worker(server, index, n=N, batch_size=BATCH, epochs=epochs, **given) as w:
        params = w.values
        for epoch in w.epochs():
            seen.append(epoch)
            for indices in w.indices():
                assert indices.dtype == np.int64 and 0 < indices.size <= 2 * BATCH
                params = {"counts": params["counts"].at[indices].add(1)}
                time.sleep(seconds)
                step += 1
                at_step(w, step)
                params = w.step(0.5, params)
    return np.asarray(w.values["counts"]), seen, w.stop_reason


def test_shared_data_are_once_an_epoch_in_the_model_of_both(jobs):
    server = jobs.server(sync="asp").listens()
    said = []
    (fast, seen, why), (slow, more, _) = both(
        (count, server, 0, 0.001, {"say": said.append}), (count, server, 1, 0.02))
    server.ends_well()
    assert not said and "not trained" not in server.text
    assert (fast == 1.5).all() and (slow == 1.5).all()  # 3 times, half a step of each push
    assert {*seen, *more} == {0, 1, 2} and seen == sorted({*seen}) and more == sorted({*more})
    assert why == "all 3 epochs are trained"
    assert sum(event["samples"] for event in server.events("accept")) == 3 * N


def test_a_worker_without_an_index_asks_for_one_when_it_is_read(jobs):
    server = jobs.server(workers=1, sync="asp").listens()
    w = worker(server, None, n=N, batch_size=BATCH)
    assert w.worker == 0
    with w:
        for _ in w.epochs():
            for _ in w.indices():
                w.step(0.5, w.values)
    assert w.worker == 0
    server.ends_well()


def test_run_steps_are_the_examples_in_steps_of_the_users_batch_and_done_ends_with_1(jobs):
    server = jobs.server(sync="pcc").listens()
    told = [[], []]

    def train(index, seconds):
        with worker(server, index, n=N, batch_size=BATCH, epochs=3) as w:
            params = w.values
            assert w.total_steps == 38  # 300 examples / 8, though an epoch's last batch is of 4
            for _ in w.epochs():
                for _ in w.indices():
                    time.sleep(seconds)
                    params = w.step(0.1, params)
                    told[index].append((w.run_steps, w.done))
        return w.run_steps, w.done, w.total_steps

    w = worker(server, n=N, batch_size=BATCH, epochs=3)
    assert (w.run_steps, w.done, w.total_steps) == (0, 0.0, 38), "before the block"
    assert both((train, 0, 0.001), (train, 1, 0.02)) == [(38, 1.0, 38)] * 2
    server.ends_well()
    for one in told:
        assert all(0 < done <= 1 and steps == -(-round(done * 3 * N) // BATCH)
                   for steps, done in one)
        assert one == sorted(one)  # no example was trained twice
        assert one[-1][0] > len(one), "of all workers, not its own"


def test_steps_on_own_data_are_counted_without_a_known_end(jobs):
    server = jobs.server(workers=1, sync="bsp").listens()
    with worker(server, values={"w": jnp.zeros(1)}, batch_size=4) as w:
        for _ in range(3):
            w.step(None, w.values)
        assert w.run_steps == 3
        w.step(None, w.values, samples=2)
        assert w.run_steps == 4
        for end in ("done", "total_steps"):
            with pytest.raises(ValueError, match=f"^w.{end} needs data that all workers share"):
                getattr(w, end)
    server.ends_well()


def test_a_loop_that_ends_early_is_reported_and_the_other_worker_trains_the_rest(jobs):
    server = jobs.server(sync="pcc").listens()
    said = []

    def leave(index):
        with worker(server, index, n=N, batch_size=BATCH, epochs=2, say=said.append) as w:
            for _ in w.indices():
                w.step(0.1, w.values)
                if index == 0:
                    break
                time.sleep(0.01)
            for _ in w.epochs() if index else ():
                for _ in w.indices():
                    w.step(0.1, w.values)

    both((leave, 0), (leave, 1))
    server.ends_well()
    assert server.find("epoch 2 of 2 is trained")
    [early] = [line for line in said if "its loop has ended" in line]
    assert early == ("worker 0: its loop has ended before the run, and leaves the rest to the "
                     "other workers; loops over w.epochs() and w.batches() end with the run")


def test_a_sampler_outside_of_batches_has_all_of_an_epoch(jobs):
    server = jobs.server(sync="pcc").listens()

    def train(index, seconds):
        seen, trained = [], 0
        with worker(server, index, n=N, batch_size=BATCH, epochs=3) as w:
            params = w.values
            for epoch in w.epochs():
                seen.append(epoch)
                for indices in w.sampler:
                    params = {"counts": params["counts"].at[np.array(indices)].add(1)}
                    trained += len(indices)
                    time.sleep(seconds)
                    params = w.step(0.5, params)
        return seen, trained, np.asarray(w.values["counts"])

    (fast, some, _), (slow, more, _) = both((train, 0, 0.001), (train, 1, 0.02))
    server.ends_well()
    assert {*fast, *slow} == {0, 1, 2} and fast == sorted({*fast}) and slow == sorted({*slow})
    assert some + more == 3 * N


def test_a_workers_own_data_are_those_of_its_loop(jobs):
    server = jobs.server(sync="bsp").listens()

    def train(index):
        with worker(server, index, {"w": jnp.zeros(2)}, batch_size=4, epochs=2) as w:
            params = w.values
            for _ in w.epochs():
                for x in w.batches([1.0, 2.0, 3.0]):
                    params = w.step(jnp.float32(x), {"w": params["w"] + x})
            assert w.progress().startswith("step 6 | loss 2.0000"), "that of the step before"
        return np.asarray(w.values["w"])

    finals = both((train, 0), (train, 1))
    server.ends_well()
    assert np.array_equal(finals[0], [12, 12]) and np.array_equal(*finals)  # the mean of the two
    assert {event["samples"] for event in server.events("accept")} == {4}


def test_several_steps_at_once_may_have_any_number_of_samples(jobs):
    server = jobs.server(workers=1, sync="bsp").listens()
    with worker(server, values={"w": jnp.zeros(1)}) as w:
        w.step(0.1, w.values, steps=5, samples=70)
        w.step(None, w.values)
        assert w.run_steps == 6 and w.progress().startswith("step 6 | loss - | version 2")
    server.ends_well()
    assert [(event["steps"], event["samples"]) for event in server.events("accept")] == [
        (5, 70), (1, 1)]


def test_any_worker_ends_the_run_for_all(jobs):
    server = jobs.server(sync="pcc").listens()

    def stop(w, step):
        if step == 5:
            w.stop_run("enough")

    said = []
    named = {"say": said.append}
    ended = both((count, server, 0, 0.005, 500, stop, named), (count, server, 1, 0.01, 500, named))
    server.ends_well()
    why = "the run was ended early: worker 0: enough"
    assert sorted(said) == [f"worker 0: {why}", f"worker 1: {why}"]
    left = int(re.search(r"not trained: ([\d,]+) of 50,000 examples \(500 epochs of 100; \d+ "
                         r"complete\)", server.text)[1].replace(",", ""))
    assert left + sum(event["samples"] for event in server.events("accept")) == 50_000
    assert {why for _, _, why in ended} == {"worker 0: enough"}
    assert np.array_equal(ended[0][0], ended[1][0])


def test_each_block_is_a_run_of_its_own(jobs):
    server = jobs.server(workers=1, sync="pcc", series=True).listens()
    w = worker(server, values={"w": jnp.zeros(1)})
    for number in range(2):
        with w:
            w.step(None, {"w": w.values["w"] + 1})
        assert w.values["w"] == number + 1
    assert len(server.find("worker 0 joined")) == 2
    next_run.close_all()
    server.ends_well()


def test_an_exception_ends_this_worker_and_the_others_continue(jobs):
    server = jobs.server(sync="pcc").listens()

    def fails(w, step):
        if step == 3:
            raise KeyError("a bug")

    with ThreadPoolExecutor(2) as threads:
        stays = threads.submit(count, server, 1, 0.01)
        with pytest.raises(KeyError, match="a bug"):
            count(server, 0, 0.01, at_step=fails)
        counts, _, _ = stays.result(120)
    server.ends_well()
    assert server.find("worker 0 .*its loop was left by KeyError")
    assert server.find("epoch 3 of 3 is trained") and counts.all()


def test_a_wrong_loop_is_refused_in_one_line(jobs):
    def forgets_the_step(w):
        for _ in w.epochs():
            list(w.indices())

    def trains_other_data(w):
        w.step(0.1, w.values)

    def trains_nothing(w):
        list(w.epochs())

    def trains_steps_at_once(w):
        for _ in w.indices():
            w.step(0.1, w.values, steps=2)

    def has_a_loader_of_its_own(w):
        list(w.batches([1, 2, 3]))

    def has_one_more_array(w):
        for _ in w.indices():
            w.step(0.1, {**w.values, "head": jnp.zeros(2)})

    def reads_ahead(w):
        list(w.sampler)

    def is_traced(w):
        import jax
        jax.jit(lambda x: w.step(x.sum(), w.values))(w.values["counts"])

    server = jobs.server(workers=1).listens()  # a worker that has failed may rejoin
    for loop, line in [
            (forgets_the_step, "a batch was requested before the last one was trained: call"),
            (trains_other_data, "a step has trained no batch of the shared data"),
            (trains_nothing, "no example of epoch 0 was trained"),
            (trains_steps_at_once, "steps=2: on shared data call w.step after each batch"),
            (has_a_loader_of_its_own, "the loader makes its own batches: create it with batch_sam"),
            (reads_ahead, "a batch was requested before .* trainer reads ahead, give its loader "),
            (has_one_more_array, "w.step was given another pytree .* began with: head was added"),
            (is_traced, "w.step was called inside a function that JAX traces")]:
        with pytest.raises(ValueError, match=f"^{line}") as error:
            with worker(server, n=N, batch_size=BATCH) as w:
                loop(w)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("given, line", [
    ({"n": 5}, "n=5 examples to share: give batch_size as well"),
    ({"n": 0, "batch_size": 4}, "n=0: it must be a whole number from 1 on"),
    ({"epochs": 0}, "epochs=0: it must be"), ({"epochs": 1.5}, "epochs=1.5: it must be")])
def test_bad_numbers_are_refused_in_one_line(given, line):
    with pytest.raises(ValueError, match=f"^{line}"):
        wbsp.Worker({"w": jnp.zeros(1)}, address="localhost:1", worker_index=0, **given)


def test_where_the_server_sets_the_batches_the_data_are_shared(jobs):
    server = jobs.server(f"--sync_option=batch={BATCH}", sync="lbbsp").listens()
    with pytest.raises(ValueError, match="^under lbbsp the server assigns the examples"):
        with worker(server):
            pass
    (fast, seen, _), (slow, _, _) = both((count, server, 0, 0.001), (count, server, 1, 0.01))
    server.ends_well()
    assert np.array_equal(fast, slow) and fast.all() and 0 in seen


def test_a_step_outside_of_the_block_is_refused(jobs):
    server = jobs.server(workers=1).listens()
    w = worker(server, values={"w": jnp.zeros(1)})
    for use in (lambda: w.step(0.1, w.values), lambda: next(w.epochs()),
                lambda: list(w.batches([1]))):
        with pytest.raises(ValueError, match="inside the block: with wbsp.Worker"):
            use()
    with w:
        pass
    with pytest.raises(ValueError, match=r"^call w.step\(\) inside the block"):
        w.step(0.1, w.values)
    with pytest.raises(ValueError, match=r"^w.indices\(\) needs data that all workers share"):
        list(w.indices())


def test_no_server_is_one_line():
    with pytest.raises(TransportError, match="no answer|nobody|not reached|no server"):
        with wbsp.Worker({"w": jnp.zeros(1)}, address="localhost:1", worker_index=0,
                         connect_timeout=0.5, say=lambda text: None):
            pass


SIGNALLED = textwrap.dedent("""
    import os, signal, sys, jax.numpy as jnp, wbsp
    with wbsp.Worker({"w": jnp.zeros(3)}, address=sys.argv[1], worker_index=0) as w:
        params = w.values
        for step in range(1000):
            if step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            params = w.step(0.1, {"w": params["w"] + 1})
    print("went on")
    """)


def test_a_signal_ends_the_loop_after_its_step_and_the_progress_is_pushed(jobs):
    server = jobs.server(workers=1, sync="localsgd", series=True).listens()
    job = jobs.start("loop", "-c", SIGNALLED, server.address)
    assert job.ends() == -15, job.text
    assert job.find("worker 0: interrupted by SIGTERM; its unsent progress is pushed")
    server.until("interrupted by SIGTERM")
    server.until("version 1 | steps 5")
    assert not job.find("went on|Traceback")


def test_the_loss_of_a_step_that_is_under_way_is_not_waited_for():
    class Later:
        """A scalar as JAX's: asking for its number waits."""

        asked = 0

        def __init__(self, value):
            self.value = value

        def block_until_ready(self):
            pass

        def __float__(self):
            Later.asked += 1
            return self.value

    w = wbsp.Worker({"w": jnp.zeros(1)}, address="localhost:1", worker_index=0)
    assert w._known(Later(1.0)) == 1.0, "the first step's is waited for"
    assert [w._known(Later(value)) for value in (2.0, 3.0)] == [1.0, 2.0]
    assert w._known(4) == 4.0 and math.isnan(w._known(None))


@pytest.mark.parametrize("at", ["the first step", "a later step", "the end"])
def test_a_variable_that_is_replaced_in_the_block_ends_it_with_a_line(jobs, at):
    tf = pytest.importorskip("tensorflow")
    server = jobs.server(workers=1).listens()
    given = {"w": tf.Variable([1.0])}
    with pytest.raises(ValueError, match="^w was replaced by another variable inside the block:"):
        with worker(server, values=given) as w:
            for step in range(1000):
                if (step == 3 and at == "a later step") or at == "the first step":
                    given["w"] = tf.Variable([2.0])
                if step == 3 and at == "the end":
                    break
                time.sleep(0.001)
                w.step(0.1)
            given["w"] = tf.Variable([2.0])
    assert step == 3 if at == "the end" else step < 999, "it is found by a step"
    server.until("its loop was left|its training was interrupted or failed")


@ON_TORCH
def test_a_variable_of_another_shape_is_named_although_the_step_was_not_looked_at(
        jobs, monkeypatch):
    import torch
    monkeypatch.setattr("wbsp.worker.any_loop._CHECKS", 1e-9)
    server = jobs.server(workers=1).listens()
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="^weight has changed its shape .it was .2, 2. and is .4,"):
        with worker(server, values=model) as w:
            w.step(0.1)
            model.weight = torch.nn.Parameter(torch.zeros(4, 2))
            for _ in range(100):
                w.step(0.1)
