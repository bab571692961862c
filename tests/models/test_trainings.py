import keras
import numpy as np
import pytest
from jobs import Jobs

import data
import models
from models import training


@pytest.mark.parametrize(("lr", "initial"), [(None, 0.1), (0.5, 0.5)])
def test_the_cnn_decays_at_the_published_local_steps(lr, initial):
    optimizer = training.optimizer("cnn", lr)
    for step, factor in [(0, 1), (7_811, 1), (7_813, 0.1), (13_670, 0.1), (13_672, 0.01)]:
        optimizer.iterations.assign(step)
        assert float(optimizer.learning_rate) == pytest.approx(initial * factor)


def test_the_other_networks_keep_their_learning_rate():
    assert float(training.optimizer("alexnet").learning_rate) == pytest.approx(0.001)
    assert float(training.optimizer("small", lr=0.02).learning_rate) == pytest.approx(0.02)
    assert float(training.optimizer("mine:model").learning_rate) == pytest.approx(0.1)


def test_a_worker_may_have_momentum_or_adam_at_a_rate_that_suits_it():
    nesterov, adam = (training.optimizer("cnn", kind=kind) for kind in ("nesterov", "adam"))
    assert nesterov.momentum == 0.9 and nesterov.nesterov
    assert type(adam) is keras.optimizers.Adam
    for optimizer, initial in ((nesterov, 0.01), (adam, 0.001)):
        for step, factor in [(0, 1), (7_813, 0.1), (13_672, 0.01)]:
            optimizer.iterations.assign(step)
            assert float(optimizer.learning_rate) == pytest.approx(initial * factor)
    assert float(training.optimizer("small", 0.3, kind="adam").learning_rate) == pytest.approx(0.3)
    clipped = training.optimizer("vgg16", dataset="imagenet", kind="nesterov")
    assert float(clipped.learning_rate) == pytest.approx(0.001) and clipped.clipnorm == 10


def test_imagenets_networks_train_as_published():
    for name, clip in (("alexnet", 10), ("vgg16", 10), ("resnet50", None), ("inception_v3", None)):
        optimizer = training.optimizer(name, dataset="imagenet")
        assert float(optimizer.learning_rate) == pytest.approx(0.01)
        assert optimizer.clipnorm == clip
    assert float(training.optimizer("vgg16", 0.1, dataset="imagenet").learning_rate) == (
        pytest.approx(0.1))


def test_compile_reports_top1_and_top5():
    model = training.compile(models.build("small", seed=1), "small")
    x, y = np.zeros((20, 32, 32, 3), "float32"), np.arange(20) % 10
    scores = model.evaluate(x, y, verbose=0, return_dict=True)
    assert scores.keys() == {"loss", "accuracy", "top5"}
    # All logits are 0: a guess among ten classes.
    assert scores["loss"] == pytest.approx(np.log(10), rel=1e-5)


def own_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(10, activation="softmax")])
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 100, 0.9)
    model.compile(keras.optimizers.Adam(schedule, beta_1=0.8), "sparse_categorical_crossentropy")
    return model


def test_a_compiled_model_keeps_its_optimizer_and_loss():
    model = own_model()
    before = model.optimizer
    training.compile(model, "mine:model")
    assert model.optimizer is before
    with pytest.raises(ValueError, match="^--optimizer=adam: mine:model comes compiled"):
        training.compile(model, "mine:model", kind="adam")
    x, y = np.ones((5, 4), "float32"), np.zeros(5, "int32")
    scores = model.evaluate(x, y, verbose=0, return_dict=True)
    assert scores["loss"] == pytest.approx(-np.log(model(x)[0, 0]), rel=1e-4)


def test_lr_replaces_the_learning_rate_of_a_compiled_model():
    model = training.compile(own_model(), "mine:model", lr=0.3)
    assert model.optimizer.beta_1 == 0.8
    assert float(model.optimizer.learning_rate) == pytest.approx(0.3)


@pytest.mark.slow
@pytest.mark.long
def test_small_learns_shapes10_in_a_few_hundred_steps():
    model = training.compile(models.build("small", seed=1), "small")
    batches = data.train_dataset("shapes10", batch_size=128, seed=1, worker_index=0)
    model.fit(batches, steps_per_epoch=500, verbose=0)
    scores = model.evaluate(data.test_dataset("shapes10"), verbose=0, return_dict=True)
    assert scores["accuracy"] > 0.88


TRAINS = """
import ctypes, sys
libc = ctypes.CDLL(None)
if not hasattr(libc, "mallinfo2"):
    sys.exit("no glibc 2.33 or newer")
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.mallinfo2.restype = type("Info", (ctypes.Structure,), {"_fields_": [
    (name, ctypes.c_size_t) for name in (
        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split())]})

def mapped():
    before = libc.mallinfo2().hblks
    for _ in range(10):
        libc.malloc(16 << 20)  # more in all than may be free already
    return libc.mallinfo2().hblks > before

from wbsp.tensors.buffers import keep_freed
assert mapped()
keep_freed()
import data, models
from models import training
with training.own_devices(print).scope():
    model = training.compile(models.build("small", 0), "small")
model.fit(data.train_dataset("shapes10", 8, 0, 0), steps_per_epoch=2, verbose=0)
print("mapped anew:", mapped())
"""


@pytest.mark.slow
@pytest.mark.long
def test_training_on_a_cpu_reuses_freed_memory(tmp_path):
    script = tmp_path / "trains.py"
    script.write_text(TRAINS)
    with Jobs(tmp_path) as jobs:
        job = jobs.start("trains", script)
        if job.ends() and "no glibc" in job.text():
            pytest.skip(job.text())
        assert job.find("mapped anew: False")
