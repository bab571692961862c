"""The installed package: its requirements, and the programs that run without TensorFlow."""

import os
import re
import runpy
from pathlib import Path

import pytest
import setuptools
from jobs import ROOT

from wbsp.runlog.reader import read_run

TRAINING_ONLY = {"tensorflow", "psutil"}
ADSP_ONLY = {"scipy"}


@pytest.fixture
def setup(monkeypatch):
    """The arguments that setup.py gives to setuptools."""
    arguments = {}
    monkeypatch.setattr(setuptools, "setup", lambda **given: arguments.update(given))
    runpy.run_path(str(ROOT / "setup.py"))
    return arguments


def project(requirement):
    return re.match(r"[\w-]+", requirement).group()


def test_a_machine_that_only_serves_needs_all_but_the_requirements_of_training(setup):
    lines = (ROOT / "requirements-server.txt").read_text().splitlines()
    listed = {line for line in lines if not line.startswith("#")}
    assert listed == {requirement for requirement in setup["install_requires"]
                      if project(requirement) not in TRAINING_ONLY | ADSP_ONLY}


def test_type_checkers_of_users_find_the_annotations(setup):
    assert all((ROOT / "wbsp" / name).exists() for name in setup["package_data"]["wbsp"])
    assert "py.typed" in setup["package_data"]["wbsp"]


def test_every_named_python_is_tested_by_the_workflow(setup):
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    tested = re.findall(r'"(3\.\d+)"', workflow)
    assert tested == [version for classifier in setup["classifiers"]
                      for version in re.findall(r":: (3\.\d+)$", classifier)]
    assert setup["python_requires"] == f">={tested[0]}" and ".ci/run" in workflow


@pytest.fixture
def serving_machine(tmp_path):
    """Environment of a machine without what only training and ADSP need."""
    missing = tmp_path / "missing"
    missing.mkdir()
    for name in (*TRAINING_ONLY, *ADSP_ONLY, "keras"):
        (missing / f"{name}.py").write_text(f"raise ImportError('{name} is not installed')\n")
    return {"PYTHONPATH": os.pathsep.join(map(str, (missing, ROOT, ROOT / "tests/helpers")))}


def test_a_server_runs_without_tensorflow(jobs, serving_machine):
    server = jobs.server(workers=1, **serving_machine).listens()
    jobs.integer_worker(server.address, 0, steps=3).ends_well()
    server.ends_well()
    assert read_run(server.folder).summary["version"] >= 1


def test_timings_are_simulated_and_drawn_without_tensorflow(jobs, serving_machine):
    simulation = jobs.start("simulation", "-m", "wbsp.simulate", "--model=timing", "--sync=bsp,pcc",
                            "--max_steps=20", "--out=runs", "--nofigures", **serving_machine)
    simulation.ends_well()
    figures = jobs.start("figures", "-m", "wbsp.figures", "runs", **serving_machine)
    figures.ends_well()
    drawn = [Path(jobs.folder, line) for line in figures.lines if line.endswith(".png")]
    assert drawn and all(path.exists() for path in drawn)
