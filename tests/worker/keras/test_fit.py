"""A call of `fit` is over when it has returned or raised, even if its frame is still referenced."""

import gc
import sys
import threading
import weakref

import keras
import pytest
from jobs import until

from wbsp.worker.keras import fit as module
from wbsp.worker.keras.fit import Fit

pytestmark = pytest.mark.slow  # Keras takes its seconds to start


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(module, "PERIOD", 0.01)


class Data:
    """What a fit was given."""


class Trainer:
    """Calls back as Keras does: `fit`, below it the list of callbacks, below that the callback."""

    def __init__(self):
        self.over = []

    def fit(self, then, data=None):
        self._train_begin()
        assert self.seen.running and not self.seen.over
        then()

    def train(self, then):
        self._train_begin()
        then()

    def _train_begin(self):
        self.seen = Fit(self.over.append)

    def is_over(self):
        return self.seen.over and not self.seen.running

    def is_told(self):
        until(lambda: self.over, "to be told that fit is over", 20)
        assert self.over == [self.seen]


def failure():
    raise ArithmeticError("out of memory, say")


def test_a_fit_that_failed_is_over_though_its_traceback_is_kept():
    trainer = Trainer()
    with pytest.raises(ArithmeticError) as kept:
        trainer.fit(failure)
    assert any(entry.name == "fit" for entry in kept.traceback)
    assert trainer.is_over()
    trainer.is_told()


def test_a_fit_that_returned_is_over():
    trainer = Trainer()
    trainer.fit(lambda: None)
    trainer.is_told()


def test_a_fit_that_is_forgotten_is_not_watched_and_its_data_is_let_go():
    trainer = Trainer()
    data = Data()
    alive = weakref.ref(data)
    trainer.fit(lambda: None, data)
    del data
    trainer.seen.forget()
    gc.collect()
    assert alive() is None
    assert not trainer.seen.over and not trainer.seen.running


def test_a_fit_in_a_thread_that_has_ended_is_over():
    trainer, go_on = Trainer(), threading.Event()
    thread = threading.Thread(target=trainer.fit, args=(lambda: go_on.wait(20),))
    thread.start()
    until(lambda: hasattr(trainer, "seen"), "the fit to begin", 20)
    assert trainer.seen.running, "seen from another thread"
    go_on.set()
    thread.join()
    trainer.is_told()


def test_the_innermost_of_nested_calls_of_fit_counts():
    class Search:
        def fit(self):
            trainer.fit(lambda: None)
            assert trainer.is_over()

    trainer = Trainer()
    Search().fit()


def test_a_loop_without_fit_is_not_watched():
    trainer = Trainer()
    before = threading.active_count()
    trainer.train(lambda: None)
    assert threading.active_count() == before
    assert not trainer.seen.over and not trainer.seen.running


def test_kerass_fit_is_found():
    class Looks(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.seen = Fit(lambda fit: None)
            frame = self.seen._frame
            assert frame.f_globals["__name__"].startswith("keras.")
            assert "callbacks" in frame.f_locals

        def on_train_batch_end(self, batch, logs=None):
            assert self.seen.running
            raise KeyboardInterrupt

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    looks = Looks()
    with pytest.raises(KeyboardInterrupt):
        model.fit(keras.ops.ones((4, 1)), keras.ops.ones((4, 1)), verbose=0, callbacks=[looks])
    assert sys.exc_info() == (None, None, None)
    assert looks.seen.over
    looks.seen.forget()
