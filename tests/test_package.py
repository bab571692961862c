"""The wheel, installed alone, in a folder without a checkout."""

import os
import shutil
import subprocess
import sys
import venv

import pytest
from jobs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.long]  # it is built, and starts TensorFlow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of an environment's programs, with nothing of wbsp but its wheel."""
    folder = tmp_path_factory.mktemp("package")
    tree = folder / "tree"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no checkout")
    for name in listed.stdout.split("\0"):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", f"--wheel-dir={folder}", tree], check=True)
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv/bin/python"
    [where] = folder.glob("venv/lib/python*/site-packages")
    [wheel] = folder.glob("*.whl")
    subprocess.run([*pip, f"--python={python}", "install", "--no-deps", wheel], check=True)
    # What it requires is here already; these folders come behind the environment's own.
    (where / "requirements.pth").write_text("\n".join(
        path for path in sys.path if path.endswith("site-packages")))
    return folder / "venv/bin"


@pytest.fixture
def wbsp(installed, tmp_path):
    def run(*arguments):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run([installed / "wbsp", *arguments], cwd=tmp_path, check=True, text=True,
                              env=environment, capture_output=True).stdout
    return run


def test_the_wheel_advises_for_a_cluster_that_it_ships(wbsp, tmp_path):
    assert "| - | pcc |" in wbsp("advise", "wan", "--model=timing", "--sync=pcc", "--nofigures")
    assert (tmp_path / "runs/simulate/pcc/run-001/run.json").exists()


def test_the_wheel_trains_with_users_folders_named_models_and_data(wbsp, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/__init__.py").write_text("raise AssertionError('this is a user`s own')")
    table = wbsp("simulate", "--model=small", "--dataset=shapes10", "--sync=pcc", "--max_steps=8",
                 "--test_images=100", "--nofigures")
    assert table.splitlines()[-1].startswith("| pcc |")


def test_the_wheel_ships_the_watch_page_and_completion(wbsp, installed, tmp_path):
    assert "complete -o default -o nospace -F _wbsp wbsp" in wbsp("--completion")
    wbsp("simulate", "--model=timing", "--sync=bsp", "--max_steps=20", "--nofigures")
    pytest.importorskip("plotly")
    wbsp("watch", "runs/simulate/bsp/run-001", "--out=report.html")
    assert (tmp_path / "report.html").stat().st_size > 1e6
