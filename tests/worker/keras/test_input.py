"""Batches whose sizes the server changes: each piece once, one trace, no endless wait."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import until

from wbsp.sync.bsp import BSP
from wbsp.worker.assignments import LOOK, NOTHING, Assignments
from wbsp.worker.keras.input import Batches, check
from wbsp.worker.keras.shared_batches import Batches as SharedBatches
from wbsp.worker.keras.tf_input import batches
from wbsp.worker.share import Range, Share

PATIENCE = 20.0  # seconds; only there so that nothing hangs for ever
many = settings(max_examples=5 * settings.default.max_examples)


def test_weights_of_classes_are_those_that_fit_makes():
    x, classes = np.arange(4.0), np.array([2, 0, 1, 2])
    weight = {0: 0.5, 2: 3.0}
    for y in (classes, classes[:, None], np.eye(3)[classes]):
        indices, _, weights = SharedBatches(
            Share(4, 4), lambda i, y=y: (x[i], y[i]), weight).of(Range(0, 0, 4))
        assert weights.tolist() == [weight.get(classes[int(i)], 1.0) for i in indices]
    with pytest.raises(ValueError, match="class_weight needs the classes in y"):
        SharedBatches(Share(4, 4), lambda i: (x[i],), weight)


def test_before_training_the_data_yield_only_the_untrained_first_batch():
    assignments = Assignments()
    assert list(assignments) == list(assignments) == [LOOK]
    assignments.begin(8)
    assignments.assign(32, 0)
    assert next(iter(assignments)) == (0, 32), "the look took nothing"


def test_a_new_beginning_forgets_the_last():
    assignments = Assignments()
    assignments.begin(8)
    before = iter(assignments)
    assignments.assign(8, 40)
    assert next(before) == (40, 8)
    assignments.assign(8, 48)
    assignments.end()
    assert list(assignments) == [LOOK]
    assignments.begin(8)
    assignments.assign(5, 0)
    assert list(before) == [], "an iterator of before yields no piece"
    assert next(iter(assignments)) == (0, 5)


EVENTS = st.lists(st.one_of(
    st.tuples(st.just("assign"), st.integers(1, 50), st.integers(0, 3)),  # how far ahead
    st.tuples(st.just("again")), st.tuples(st.just("step")), st.tuples(st.just("take"))),
    max_size=30)


@many
@given(EVENTS)
def test_a_piece_of_the_shared_stream_is_given_once(events):
    assignments = Assignments()
    assignments.begin(8)
    pieces, assigned, taken = iter(assignments), [(0, 5)], []
    assignments.assign(5, 0)
    for kind, *numbers in events:
        match kind:
            case "assign":
                batch, ahead = numbers
                assigned.append((sum(assigned[-1]) + ahead, batch))
                assignments.assign(*reversed(assigned[-1]))
            case "again":  # after a break of the connection the server repeats it
                assignments.assign(*reversed(assigned[-1]))
            case "step":
                assignments.step_begins()
            case "take" if len(taken) < len(assigned):
                taken.append(next(pieces))
    while len(taken) < len(assigned):
        taken.append(next(pieces))
    assert taken == assigned


@many
@given(st.lists(st.one_of(st.none(), st.integers(1, 50)), min_size=1, max_size=30))
def test_a_workers_own_stream_continues_without_a_gap_for_any_sizes(events):
    """None: a step begins; else the server directs another size."""
    assignments = Assignments()
    assignments.begin(8)
    pieces, size, position = iter(assignments), 8, 0
    for event in [*events, None]:
        if event is None:
            assignments.step_begins()
            assert next(pieces) == (position, size)
            position += size
        else:
            size = event
            assignments.assign(size, None)


def test_a_wait_for_a_piece_ends_in_time():
    assignments = Assignments()
    assignments.begin(8)
    pieces = iter(assignments)
    start = time.monotonic()
    assert next(pieces) == NOTHING
    threading.Timer(0.05, assignments.end).start()
    assert set(pieces) <= {NOTHING}
    assert time.monotonic() - start < PATIENCE


def test_a_stream_is_read_once():
    assignments = Assignments()
    assignments.begin(8)
    assignments.step_begins()
    assert next(iter(assignments)) == (0, 8)
    with pytest.raises(RuntimeError, match="read once: give fit its steps_per_epoch"):
        next(iter(assignments))


# Real fits; a callback plays the server.

FEATURES = 3


def examples(start, count):
    """The position is the first feature."""
    position = tf.range(start, start + count)
    x = tf.stack([tf.cast(position, tf.float32)] * FEATURES, 1)
    return tf.ensure_shape(x, [None, FEATURES]), tf.cast(position % 2, tf.int32)


class Counting(keras.Model):
    """A linear model that remembers how often its step was traced, and what it was trained on."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.traces, self.seen = 0, []

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, x):
        return self.dense(x)

    def train_step(self, batch):
        self.traces += 1
        tf.py_function(lambda x: self.seen.append(x.numpy()), [batch[0][:, 0]], [])
        return super().train_step(batch)


def counting(**options):
    model = Counting()
    model.build((None, FEATURES))
    model.compile(keras.optimizers.SGD(1e-6), jit_compile=False,
                  loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model


class Director(keras.callbacks.Callback):
    """Assigns pieces as a server does: the next one when a step has ended."""

    def __init__(self, assignments, sizes, shared=True):
        super().__init__()
        self.assignments, self.sizes, self.shared = assignments, iter(sizes), shared
        self.position = 0

    def on_train_begin(self, logs=None):
        self.assignments.begin(4)
        self._assign()

    def on_train_batch_begin(self, batch, logs=None):
        self.assignments.step_begins()

    def on_train_batch_end(self, batch, logs=None):
        self._assign()

    def on_train_end(self, logs=None):
        self.assignments.end()

    def _assign(self):
        if (size := next(self.sizes, None)) is not None:
            self.assignments.assign(size, self.position if self.shared else None)
            self.position += size


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("strategy", [tf.distribute.get_strategy,
                                      lambda: tf.distribute.OneDeviceStrategy("/cpu:0")])
def test_a_fit_with_changing_sizes_trains_its_pieces_and_traces_once(strategy, shared):
    sizes = np.random.default_rng(0).integers(1, 60, 40).tolist()
    with strategy().scope():
        model = counting()
    assignments = Assignments()
    model.fit(batches(assignments, examples), epochs=4, steps_per_epoch=10, verbose=0,
              callbacks=[Director(assignments, sizes, shared)])
    assert list(map(len, model.seen)) == sizes
    assert np.concatenate(model.seen).tolist() == list(range(sum(sizes)))
    usual = counting()
    usual.fit(np.zeros((80, FEATURES)), np.zeros(80, int), batch_size=8, epochs=1, verbose=0)
    assert model.traces <= usual.traces


def test_a_user_may_iterate_over_the_dataset_before_fit():
    assignments = Assignments()
    dataset = batches(assignments, examples)
    (x, y), = dataset
    assert x.shape == (LOOK[1], FEATURES) and y.shape == LOOK[1:]
    model = counting()
    model.fit(dataset, epochs=1, steps_per_epoch=3, verbose=0,
              callbacks=[Director(assignments, [5, 6, 7])])
    assert list(map(len, model.seen)) == [5, 6, 7]


def test_the_runs_end_wakes_a_wait_for_a_batch():
    assignments = Assignments()
    dataset = batches(assignments, examples)
    assignments.begin(None)

    def ends():
        until(lambda: assignments._iterated, "the pipeline to ask for a piece")
        assignments.end()

    with ThreadPoolExecutor() as pool:
        ended = pool.submit(ends)
        assert list(dataset) == []
        ended.result()


def test_taking_some_batches_waits_for_no_more():
    assignments = Assignments()
    assignments.begin(None)
    for start in (0, 5):
        assignments.assign(5, start)
    begin = time.monotonic()
    assert [len(x) for x, _ in batches(assignments, examples).take(2)] == [5, 5]
    assert time.monotonic() - begin < PATIENCE


def test_an_error_in_the_middle_of_fit_leaves_no_thread_waiting():
    """No `end` is called here, and the pipeline's thread waits for a piece that never comes."""
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise ArithmeticError("out of memory, say")

    assignments = Assignments()
    start = time.monotonic()
    with pytest.raises(ArithmeticError):
        counting().fit(batches(assignments, examples), epochs=1, steps_per_epoch=10, verbose=0,
                       callbacks=[Director(assignments, [4, 5, 6, 7]), Fails()])
    assert time.monotonic() - start < PATIENCE


def test_a_stream_cannot_serve_several_steps_at_once():
    with pytest.raises(ValueError, match="steps_per_execution=4: .*compile the model with"):
        check(counting(steps_per_execution=4), True, "bsp", BSP.rule)


# The form without tf.data: the batches are made where Keras asks for them.

def pieces(dataset, *indices):
    return [tuple(dataset[index].tolist()) for index in indices]


@pytest.fixture
def on_demand():
    assignments = Assignments()
    dataset = Batches(assignments, lambda start, count: np.array([start, count]))
    return assignments, dataset


def test_batches_of_the_own_stream_come_on_demand_and_continue_without_a_gap(on_demand):
    assignments, dataset = on_demand
    assert pieces(dataset, 0) == [LOOK]
    assignments.begin(8)
    assert pieces(dataset, 0, 1) == [(0, 8), (8, 8)]
    assignments.step_begins()  # as a back end that reports it after its request
    assignments.assign(5, None)
    assert pieces(dataset, 2, 3) == [(16, 5), (21, 5)]


def test_batches_of_the_shared_stream_are_waited_for(on_demand):
    assignments, dataset = on_demand
    assignments.begin(None)
    assignments.assign(8, 40)
    assert pieces(dataset, 0) == [(40, 8)]
    threading.Timer(0.05, assignments.assign, (3, 48)).start()
    assert pieces(dataset, 1) == [(48, 3)]


def test_a_wait_for_a_batch_ends_with_the_run(on_demand):
    assignments, dataset = on_demand
    assignments.begin(None)
    threading.Timer(0.05, assignments.end).start()
    assert pieces(dataset, 0, 1) == 2 * [LOOK]
    assignments.begin(8)
    assert pieces(dataset, 0) == [(0, 8)], "another run"
