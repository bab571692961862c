"""The laws of a model's replica hold on every back end; a process has one back end of Keras."""

import forked
import pytest
from back_ends import JAX_AT_NIGHT, TORCH
from jobs import ROOT

pytestmark = pytest.mark.slow  # a back end takes its seconds to start

FILES = "model", "states", "frozen", "layers", "saved", "local", "every_layer"
WEIGHTS = "put_into or in_a_batch or swap_ema or early or backup"


@pytest.mark.parametrize("back_end", [JAX_AT_NIGHT, TORCH])
def test_another_back_end_passes_the_same_tests(jobs, back_end):
    job = jobs.start("pytest", "-m", "pytest", "-q", "-p", "no:cacheprovider",
                     f"--basetemp={jobs.folder / 'inner'}", *(
                         ROOT / f"tests/replica/test_{of}.py" for of in FILES),
                     KERAS_BACKEND=back_end)
    job.ends_well()
    assert job.find(r"\d\d passed")


@pytest.mark.parametrize("back_end", [JAX_AT_NIGHT, TORCH])
def test_callbacks_change_weights_in_steps_only_on_every_back_end(jobs, back_end):
    job = jobs.start("pytest", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", WEIGHTS,
                     f"--basetemp={jobs.folder / 'inner'}",
                     ROOT / "tests/worker/keras/test_other_callbacks.py",
                     KERAS_BACKEND=back_end)
    job.ends_well()
    assert job.find(r"\d\d passed")


def test_an_unknown_back_end_is_refused_in_one_line(jobs):
    code = ("import keras; from wbsp.replica.model import open_replica; "
            "keras.backend.backend = lambda: 'openvino'\n"
            "try: open_replica(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))\n"
            "except ValueError as error: print(error)")
    (jobs.folder / "refused.py").write_text(code)
    job = jobs.start("refused", "refused.py", fork=forked.KERAS)
    job.ends_well()
    assert job.find("^KERAS_BACKEND=openvino: wbsp trains on tensorflow, jax, torch$")
