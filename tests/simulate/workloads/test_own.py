"""Tasks of one's own: the examples of the page, and what is refused."""

import importlib.util
import math

import numpy as np
import pytest
from docs_code import python_below

from wbsp.simulate.study.measure import batches, law_of, measure
from wbsp.simulate.study.spec import StepLaw
from wbsp.simulate.workloads.own import OwnTask
from wbsp.simulate.workloads.task import TaskWorkload

PAGE = "how-to/own-task.md"
NUMPY = """
import numpy as np

x = np.arange(12, dtype=np.float32) / 12
schedule_calls = []


def make(seed):
    return {"w": np.full((1, 2), seed, np.float32), "parts": [np.zeros(3), np.int32(7)]}, len(x)


def make_state():
    return []


def step(values, state, indices, rate):
    values["w"] -= rate * x[indices].mean()
    values["parts"][1] = values["parts"][1] + 1
    return values, [*state, len(indices)], float(x[indices].mean())


def evaluate(values):
    return {"loss": float(values["w"].sum()), "counted": int(values["parts"][1])}
"""


def task(tmp_path, text, batch=4, rate=0.5):
    path = tmp_path / "my_task.py"
    path.write_text(text)
    return OwnTask(path, batch, rate)


def trained(task, steps, rate, batch=4, workers=2):
    """The metrics of the mean of two workers, before and after so many steps of each."""
    workload = TaskWorkload(task, 0, workers, batch, lambda worker: rate)
    version = workload.initial()
    before = task.evaluate(version)
    for _ in range(steps):
        for worker in range(workers):
            workload.step(worker)
        version = version + sum(workload.cut(worker) for worker in range(workers)) / workers
        for worker in range(workers):
            workload.adopt(worker, version, "replace")
    return before, task.evaluate(version)


@pytest.mark.parametrize(("heading", "needs", "rate"), [
    ("PyTorch", "torch", 0.01), ("JAX", "jax", 0.1), ("Keras", "keras", 0.01)])
def test_an_example_of_the_page_learns(tmp_path, heading, needs, rate):
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    before, after = trained(task(tmp_path, python_below(PAGE, heading), 32, rate), 25, rate, 32)
    assert after["loss"] < 0.8 * before["loss"]


def test_floats_travel_and_other_numbers_stay_with_each_worker(tmp_path):
    own = task(tmp_path, NUMPY)
    vector, n = own.make(3)
    assert (vector.tolist(), n) == ([3, 3, 0, 0, 0], 12)
    first, second = own.make_state(), own.make_state()
    for _ in range(3):
        vector_after, first, _ = own.step(vector, first, np.arange(2), 0.0)
    assert (first.own, [int(one) for one in first.still]) == ([2, 2, 2], [10])
    assert (second.own, [int(one) for one in second.still]) == ([], [7])
    assert vector_after.dtype == np.float32 and vector_after.tolist() == vector.tolist()
    assert own.evaluate(vector)["counted"] == 7, "of make, whatever a worker counts"


def test_a_step_may_write_to_its_values(tmp_path):
    own = task(tmp_path, NUMPY)
    version, _ = own.make(3)
    before = version.copy()
    after, _, _ = own.step(version, own.make_state(), np.arange(12), 1.0)
    assert np.array_equal(version, before) and not np.array_equal(after, before)


def test_a_schedule_is_the_factor_of_the_rate(tmp_path):
    assert task(tmp_path, NUMPY).schedule(0.5) == 1.0
    falling = task(tmp_path, NUMPY + "\n\ndef schedule(done):\n    return 1 - done\n")
    assert [falling.schedule(done) for done in (0.0, 0.25)] == [1.0, 0.75]


@pytest.mark.parametrize(("old", "new", "words"), [
    ("def evaluate", "def measure", "my_task.py has no function evaluate; a task has make(seed), "),
    ("import numpy", "import nunpy", "line 2: the import raised ModuleNotFoundError: No module"),
    ("return []", "return [", "line 13: the import raised SyntaxError: "),
    ("return []", "return [][1]", "my_task.py, line 13: make_state raised IndexError: list index"),
    ("import numpy as np", "import sys\nsys.exit(3)", "line 3: the import raised SystemExit: 3"),
    (", len(x)\n", "\n", "make returned a dict; return values, n"),
    (", len(x)\n", ", 0.5\n", "make returned n=0.5; n is the number of examples, a whole number"),
    (", len(x)\n", ", 3\n", "--batch_size=4: make of my_task.py says that there are 3 examples"),
    ("np.zeros(3)", "'zeros'", "make returned values['parts'][0] of type str; give an array"),
    ("np.zeros(3)", "np.full(3, np.nan)", "make returned values['parts'][0] with NaN or infinity"),
    ("np.full((1, 2), seed,", "np.full((1, 2), np.random.rand(),",
     "make returned other values for the same seed; draw them from it"),
    ("return values, [*state, len(indices)],", "return values,",
     "step returned 2 things; return values, state, loss"),
    ("return values, [*", "values['new'] = values['w']\n    return values, [*",
     "step returned other values than make did: values['new'] is new"),
    ("return values, [*", "return values['w'], [*",
     "step returned other values than make did: values is of type ndarray, not a dict"),
    ('values["w"] -= ', 'values["w"] = values["w"].T - ',
     "step returned values['w'] of shape [2, 1]; make's have shape [1, 2]"),
    ("float(x[indices].mean())", "x[indices]", "step returned a ndarray as loss, which is no num"),
    ("float(x[indices].mean())", "float('nan')",
     "step returned the loss nan for the first 4 examples at rate 0.5; check the data, or give a "),
    ('values["w"] -= rate', 'values["w"] -= 1',
     "step returned the same values at rate 0.5 and at 1; train with its argument rate, as by"),
    ('{"loss": float(values["w"].sum()), ', '1 or {', "evaluate returned 1; give metrics by name"),
    ('float(values["w"].sum())', "None", "evaluate returned None as metric 'loss', which is no "),
    ('float(values["w"].sum())', "np.inf", "evaluate returned loss=inf for the values of make(0)"),
])
def test_a_bad_file_ends_in_one_line(tmp_path, old, new, words):
    assert old in NUMPY
    with pytest.raises(ValueError) as error:
        task(tmp_path, NUMPY.replace(old, new, 1))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_an_incomplete_task_is_not_run(tmp_path):
    (tmp_path / "train.py").write_text("def evaluate(values): ...\nraise KeyError('it trains')\n")
    with pytest.raises(ValueError, match="train.py has no function make and no make_state and"):
        OwnTask(tmp_path / "train.py", 4, 0.5)


def test_functions_of_other_modules_make_a_task(tmp_path, monkeypatch):
    (tmp_path / "all_four.py").write_text(NUMPY)
    monkeypatch.syspath_prepend(str(tmp_path))
    for line in ("from all_four import *", "from all_four import evaluate, make, make_state, step"):
        assert task(tmp_path, line + "\n").size == 12


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no.py does not exist; give a Python file with ma"):
        OwnTask(tmp_path / "no.py", 4, 0.5)


def test_an_argument_parser_of_the_script_reads_no_flags_of_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["wbsp advise", "--task=my_task.py"])
    parsed = "import argparse\nargparse.ArgumentParser().parse_args()\n"
    assert task(tmp_path, parsed + NUMPY).size == 12


def test_the_law_of_steps_is_that_of_the_measurements():
    exact = law_of([(8, 0.018), (16, 0.026), (32, 0.042)])
    assert exact == (pytest.approx(0.01), pytest.approx(0.001))
    assert law_of([(8, 0.03), (16, 0.02), (32, 0.01)]) == (pytest.approx(0.02), 0.0)
    fixed, example = law_of([(8, 0.007), (16, 0.016), (32, 0.033)])
    assert fixed == 0.0 and example == pytest.approx(0.001, rel=0.05)
    assert str(StepLaw(0.008, 0.0001)) == "8ms+0.1ms"
    assert [batches(32, 99), batches(2, 99), batches(1, 99), batches(1, 1)] == [
        [8, 16, 32], [1, 2, 4], [1, 2, 4], [1]]


def test_a_slow_step_is_measured_as_slow(tmp_path):
    slow = task(tmp_path, "import time\n" + NUMPY.replace(
        "    values[\"w\"] -=", "    time.sleep(0.02 + 0.01 * len(indices))\n    values[\"w\"] -="))
    law, found = measure(lambda sizes: slow.seconds(sizes, most=0.3), 4, slow.size)
    assert [examples for examples, _ in found] == [1, 2, 4]
    assert all(seconds >= 0.02 + 0.01 * examples for examples, seconds in found)
    assert math.isfinite(law.seconds(4)) and law.seconds(4) >= 0.05
