"""The installed package: its requirements, and the programs that run without TensorFlow."""

import importlib.metadata
import os
import re
import runpy
import subprocess
import sys
import venv
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np
import pytest
from jobs import ROOT, free_port

from wbsp.ps.checkpoint import format as checkpoint
from wbsp.runlog.reader import read_run

TENSORFLOW = "tensorflow"


@pytest.fixture
def settings():
    """pyproject.toml."""
    tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def project(requirement):
    return re.match(r"[\w-]+", requirement).group()


def test_a_machine_without_tensorflow_needs_all_other_requirements(settings):
    assert set(of_the_server()) == {
        requirement for requirement in settings["project"]["dependencies"]
        if project(requirement) != TENSORFLOW}


def test_type_checkers_of_users_find_the_annotations(settings):
    data = settings["tool"]["setuptools"]["package-data"]
    assert "py.typed" in data["wbsp"]
    assert all(list((ROOT / package.replace(".", "/")).glob(pattern))
               for package, patterns in data.items() for pattern in patterns)


def test_every_named_python_is_tested_by_the_workflow(settings):
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    tested = re.findall(r'"(3\.\d+)"', workflow)
    assert tested == [version for classifier in settings["project"]["classifiers"]
                      for version in re.findall(r":: (3\.\d+)$", classifier)]
    assert settings["project"]["requires-python"] == f">={tested[0]}" and ".ci/run" in workflow


def test_a_folder_of_that_name_beside_a_script_does_not_hide_an_editable_installation(
        tmp_path, monkeypatch):
    clone, beside = tmp_path / "clone", tmp_path / "beside"
    (beside / "wbsp" / "docs").mkdir(parents=True)  # another clone, or the same one
    (clone / "wbsp").mkdir(parents=True)
    for name in ("setup.py", "README.md", "wbsp/__init__.py"):
        (clone / name).write_text((ROOT / name).read_text())
    arguments = {}
    monkeypatch.setattr("setuptools.setup", lambda **given: arguments.update(given))
    monkeypatch.setattr("sys.argv", ["setup.py", "editable_wheel"])
    for _ in range(2):  # it may be installed again
        runpy.run_path(str(clone / "setup.py"))
    (where,) = arguments["package_dir"].values()  # setuptools puts this one folder on the path
    found = PathFinder.find_spec("wbsp", [str(beside), str(clone / where)])
    assert Path(found.origin).samefile(clone / "wbsp" / "__init__.py")
    assert [path.name for path in (clone / where).iterdir()] == ["wbsp"], "nothing else of it"


@pytest.mark.parametrize("repository", ["", "https://example.org/us/wbsp"])
def test_the_readme_of_the_package_has_no_link_that_leads_nowhere(monkeypatch, repository):
    monkeypatch.setenv("WBSP_REPOSITORY", repository)
    arguments = {}
    monkeypatch.setattr("setuptools.setup", lambda **given: arguments.update(given))
    runpy.run_path(str(ROOT / "setup.py"))
    links = re.findall(r"\]\(([^)]*)\)", arguments["long_description"])
    assert links and not [link for link in links if not link.startswith(("https://", "#"))]
    assert any(link.startswith("https://example.org/us/wbsp/blob/main/docs/") for link in links
               ) == bool(repository)


@pytest.fixture
def serving_machine(tmp_path):
    """Environment of a machine without TensorFlow and Keras."""
    missing = tmp_path / "missing"
    missing.mkdir()
    for name in (TENSORFLOW, "keras"):
        (missing / f"{name}.py").write_text(
            f"raise ModuleNotFoundError('{name} is not installed', name='{name}')\n")
    return {"PYTHONPATH": os.pathsep.join(map(str, (missing, ROOT, ROOT / "tests/helpers")))}


def test_a_server_runs_without_tensorflow(jobs, serving_machine):
    server = jobs.server(workers=1, **serving_machine).listens()
    jobs.integer_worker(server.address, 0, steps=3).ends_well()
    server.ends_well()
    assert read_run(server.folder).summary["version"] >= 1


# A network with state of its own, on a stream whose pieces the server chooses.
ON_JAX = """
import sys
import time
import keras
import numpy as np
import wbsp

class Slow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.02 * index)

index = int(sys.argv[2])
draw = np.random.default_rng(0)
x = draw.normal(3.0, 2.0, (512, 8)).astype("float32")
y = x.sum(1, keepdims=True)

def examples(start, count):
    at = (start + np.arange(count)) % len(x)
    return x[at], y[at]

model = keras.Sequential([keras.Input((8,)), keras.layers.BatchNormalization(),
                          keras.layers.Dropout(0.1), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.1), "mse")
hook = wbsp.SyncCallback(f"localhost:{sys.argv[1]}", worker_index=index)
model.fit(hook.stream(examples, 16), steps_per_epoch=5, epochs=2, verbose=0, shuffle=False,
          callbacks=[hook, Slow()])
np.save(f"worker{index}.npy", np.concatenate([w.ravel() for w in model.get_weights()
                                              if w.dtype == "float32"]))
assert "tensorflow" not in sys.modules
"""


@pytest.mark.long
def test_workers_on_jax_train_without_tensorflow(jobs):
    missing = jobs.folder / "missing"
    missing.mkdir()
    (missing / "tensorflow.py").write_text("raise ImportError('TensorFlow is not installed')\n")
    (jobs.folder / "train.py").write_text(ON_JAX)
    # Few sizes: JAX compiles the step for each.
    server = jobs.server("--sync_option=grain=32", sync="lbbsp").listens()
    workers = [jobs.start(f"worker{index}", "train.py", server.address.rpartition(":")[2], index,
                          KERAS_BACKEND="jax",
                          PYTHONPATH=os.pathsep.join(map(str, (missing, ROOT))))
               for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    final = [np.load(jobs.folder / f"worker{index}.npy") for index in range(2)]
    assert final[0].tobytes() == final[1].tobytes()
    assert sorted(final[0]) == sorted(saved.vector), "Keras has another order"
    accepts = server.events("accept")
    assert [sum(e["steps"] for e in accepts if e["worker"] == w) for w in (0, 1)] == [10, 10]
    assert len({e["samples"] for e in accepts}) > 1, "the server changed no batch"


def only(folder, *requirements):
    """Make an environment that has these requirements and what they require, and wbsp from here;
    return its Python. They are linked from where they are installed."""
    requirement = pytest.importorskip("packaging.requirements").Requirement
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    left, found = list(requirements), set()
    while left:
        one = requirement(left.pop())
        if one.name in found or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(one.name)
        distribution = importlib.metadata.distribution(one.name)
        left += distribution.requires or []
        for name in {path.parts[0] for path in distribution.files or []} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(distribution.locate_file(name)).resolve())
    (packages / "wbsp").symlink_to(ROOT / "wbsp")
    return folder / "bin/python"


def of_the_server():
    lines = (ROOT / "requirements-server.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("framework, beside", [("torch", []), ("jax", ["optax"])])
def test_a_machine_without_tensorflow_and_keras_trains(jobs, framework, beside):
    pytest.importorskip(framework)
    python = only(jobs.folder / "slim", *of_the_server(), framework, *beside)
    # The environment has no other folder to import from.
    alone = {"PYTHONPATH": "", "WBSP_SERVER": "", "TF_CONFIG": ""}
    port = free_port()
    server = jobs.run("server", python, "-m", "wbsp", "ps", "--worker_num=2", "--one_run",
                      f"--port_base={port}", **alone)
    workers = [jobs.run(f"worker{index}", python, ROOT / "tests/helpers/loop_worker.py", framework,
                        f"localhost:{port}", index, 0, f"{index}.npy", **alone)
               for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    for command in ("models", "advise"):
        more = ["pair", "--model=timing", "--max_steps=100"] if command == "advise" else []
        jobs.run(command, python, "-m", "wbsp", command, *more, **alone).ends_well()
    said = jobs.run("keras", python, "-c", "import wbsp; wbsp.SyncCallback()", **alone)
    assert said.ends() == 1
    assert said.lines == ["wbsp: wbsp.SyncCallback needs Keras, which is not installed: pip "
                          "install keras; a loop without Keras takes wbsp.Worker"]


def test_a_callback_without_keras_is_one_line(serving_machine):
    done = subprocess.run([sys.executable, "-c", "import wbsp; wbsp.SyncCallback()"], text=True,
                          capture_output=True, env={**os.environ, **serving_machine})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("wbsp: wbsp.SyncCallback needs Keras, which is not installed: ")
    assert done.stderr.count("\n") == 1


def test_a_training_without_keras_is_one_line(serving_machine, tmp_path):
    done = subprocess.run([sys.executable, "-m", "wbsp", "advise", "pair"], text=True, cwd=tmp_path,
                          capture_output=True, env={**os.environ, **serving_machine})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("advise: --model=small is trained by Keras on TensorFlow or JAX, "
                                  "and keras is not installed: pip install keras tensorflow, or")
    assert done.stderr.count("\n") == 1


def test_timings_are_simulated_and_drawn_without_tensorflow(jobs, serving_machine):
    simulation = jobs.start("simulation", "-m", "wbsp.simulate", "--model=timing", "--sync=bsp,pcc",
                            "--max_steps=20", "--out=runs", "--nofigures", **serving_machine)
    simulation.ends_well()
    figures = jobs.start("figures", "-m", "wbsp.figures", "runs", **serving_machine)
    figures.ends_well()
    drawn = [Path(jobs.folder, line) for line in figures.lines if line.endswith(".png")]
    assert drawn and all(path.exists() for path in drawn)
