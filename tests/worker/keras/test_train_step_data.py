"""What a model's own train_step receives from `examples`: what `fit` gives it of the same arrays.

On whatever Keras runs on in this process.
"""

import os

import numpy as np
import pytest

pytestmark = pytest.mark.slow  # a back end takes its seconds to start

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")
from wbsp.worker.assignments import Assignments  # noqa: E402
from wbsp.worker.keras.examples import dataset  # noqa: E402
from wbsp.worker.keras.input import batches  # noqa: E402
from wbsp.worker.share import Share  # noqa: E402

N = 4
DOUBLE = np.arange(12.0).reshape(N, 3)
FLOAT = DOUBLE[:, :2].astype("float32")
NUMBER = np.arange(N)


class Seen(Exception):
    """Ends a fit."""


class Notes(keras.Model):
    """Keeps the data of its first step."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 3))
        self.built = True

    def train_step(self, *given):
        self.data = given[-1]
        raise Seen

    def _symbolic_build(self, *args, **options):
        """Not needed: the model is built."""


def seen(*args, **options):
    model = Notes()
    model.compile("sgd", run_eagerly=True, jit_compile=False)
    with pytest.raises(Seen):
        model.fit(*args, **options, shuffle=False, verbose=0)
    return model.data


def form(data):
    """The data with their containers, as a comparable value."""
    if isinstance(data, dict):
        return {name: form(part) for name, part in data.items()}
    if isinstance(data, tuple | list):
        return type(data)(form(part) for part in data)
    array = keras.ops.convert_to_numpy(data)
    return array.dtype.name, array.tolist()


@pytest.mark.parametrize("given", [
    (DOUBLE,), ({"a": FLOAT, "b": NUMBER},), ((DOUBLE, FLOAT),), ([DOUBLE, FLOAT],),
    (DOUBLE, NUMBER), (DOUBLE, None), (FLOAT, DOUBLE, NUMBER), ((DOUBLE, FLOAT), NUMBER),
    ([DOUBLE, FLOAT], NUMBER), ({"a": DOUBLE, "b": [FLOAT, NUMBER]}, {"c": FLOAT}),
    (DOUBLE, [FLOAT, NUMBER], [NUMBER, NUMBER])], ids=str)
def test_a_train_step_receives_the_same_as_from_fit_on_the_arrays(given):
    x, y, weights = (*given, None, None)[:3]
    wanted = seen(x, y, sample_weight=weights, batch_size=N)

    def function(indices):
        parts = keras.tree.map_structure(lambda array: array[indices], given, none_is_leaf=False)
        return parts[0] if len(parts) == 1 and not isinstance(given[0], tuple | list) else parts

    found = seen(dataset(Share(N, N), function, None, 0), steps_per_epoch=1)
    assert form(found) == form(wanted)


def test_a_tuple_of_one_stays_one_as_in_a_dataset():
    found = seen(dataset(Share(N, N), lambda i: (FLOAT[i],), None, 0), steps_per_epoch=1)
    assert form(found) == (form(FLOAT),)


def test_a_list_is_taken_for_a_tuple_as_from_a_loader():
    found = seen(dataset(Share(N, N), lambda i: [FLOAT[i], NUMBER[i]], None, 0), steps_per_epoch=1)
    assert form(found) == (form(FLOAT), form(NUMBER))


def test_a_stream_gives_what_its_function_returns():
    x = keras.ops.convert_to_tensor(FLOAT)  # TensorFlow calls it in a graph
    for given in (x, (x,), (x, x), {"a": x}):
        stream = batches(Assignments(), lambda start, count, given=given: given)
        found = seen(stream, steps_per_epoch=1)
        assert form(found) == form(given)


def test_weights_without_labels_are_refused():
    with pytest.raises(ValueError, match="returned None beside other arrays: return x, "):
        dataset(Share(N, N), lambda i: (FLOAT[i], None, NUMBER[i]), None, 0)


def test_processes_of_a_loader_keep_the_form():
    if keras.backend.backend() != "torch":
        with pytest.raises(ValueError, match="processes=2: only PyTorch's DataLoader"):
            dataset(Share(N, N), lambda i: FLOAT[i], None, 2)
        return
    from wbsp.worker.keras import torch_examples
    made = torch_examples._shared(({"a": FLOAT}, NUMBER))
    assert isinstance(made, tuple) and form(made) == ({"a": form(FLOAT)}, form(NUMBER))
