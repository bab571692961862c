"""The check for machines with a GPU, as far as a machine without one can carry it out."""

import importlib
import json
import os
import time

import numpy as np
import pytest
from jobs import ROOT

CHECK = ROOT / "scripts/gpu_check.py"
PATIENCE = 60.0
minutes = pytest.mark.skipif("WBSP_BENCHMARKS" not in os.environ,
                             reason="takes minutes of two cores: WBSP_BENCHMARKS=1")


@pytest.fixture
def module():
    """module(name) is scripts/gpu/NAME.py."""
    return lambda name: importlib.import_module(f"scripts.gpu.{name}")


def check(jobs, *flags, back_end, code):
    """The lines of a check, which ends with that exit code."""
    job = jobs.start("gpu_check", CHECK, *flags, KERAS_BACKEND=back_end, JAX_PLATFORMS="cpu")
    assert job.ends(280) == code, job.text
    job.was_clean()
    return job.lines


def test_without_a_gpu_one_line_names_the_checked_devices(jobs):
    (line,) = check(jobs, back_end="jax", code=1)
    assert line.startswith("gpu_check: no GPU: jax sees none. Look at `nvidia-smi`")


@pytest.mark.parametrize("flag, back_end, line", [
    ("--networks=cn", "jax", "--networks=cn: choose of cnn, alexnet, small, vgg16, "),
    ("--sizes=big", "jax", "--sizes=big: write MB, such as 0.6,102"),
    ("--json=no/such/folder", "jax", "[Errno 2] No such file or directory: 'no/such/folder'"),
    ("--quick", "openvino", "KERAS_BACKEND=openvino: choose one of tensorflow, jax, torch"),
], ids=lambda value: str(value).partition("=")[0])
def test_bad_input_is_one_line(jobs, flag, back_end, line):
    (said,) = check(jobs, flag, back_end=back_end, code=1)
    assert said.startswith(f"gpu_check: {line}")


def test_every_end_of_a_process_is_one_line(module):
    device = module("device")
    end = time.monotonic() + PATIENCE
    with device.Process(device.Place("jax", "cpu")) as process:
        with pytest.raises(device.PartError, match="^ModuleNotFoundError: .*nothing") as failed:
            process.call("device.devices", "nothing", end=end)
        assert "Traceback" in failed.value.details
        with pytest.raises(device.PartError, match="not done in time: --limit"):
            process.result(end=0.0)  # of nothing
        process._process.kill()
        process._process.join(PATIENCE)
        with pytest.raises(device.PartError, match="its process ended with exit code -9"):
            process.call("device.devices", "nothing", end=end)


@pytest.mark.slow
def test_a_replica_that_is_off_by_one_bit_is_noticed(module, monkeypatch):
    pytest.importorskip("keras")
    versions = module("versions")
    assert versions.exact("small") == {"host": True,
                                       "wrong": {"replace": 0, "cut": 0, "rebase": 0}}
    open_replica = versions.open_replica

    def off(model):
        replica = open_replica(model)
        cut = replica.cut

        def of_a_bit():
            update = np.array(cut())
            update[7] = np.nextafter(update[7], np.float32(np.inf))
            return update

        replica.cut = of_a_bit
        return replica

    monkeypatch.setattr(versions, "open_replica", off)
    assert versions.exact("small")["wrong"] == {"replace": 0, "cut": 1, "rebase": 0}


@minutes
@pytest.mark.parametrize("back_end", ["jax", "tensorflow"])
def test_all_parts_can_be_rehearsed_on_a_cpu(jobs, tmp_path, back_end):
    file = tmp_path / "figures.json"
    check(jobs, "--device=cpu", "--quick", "--networks=small", "--small=small", "--batch_size=8",
          "--sizes=0.1,5", "--limit=270", "--part_limit=270", f"--json={file}",
          back_end=back_end, code=0)
    figures = json.loads(file.read_text())
    assert (figures["back_end"], figures["device"]) == (back_end, "cpu")
    parts = {name: one["rows"] for name, one in figures["parts"].items()}
    assert list(parts) == ["versions", "hook small", "together", "h1", "trips"]
    exact, trained = parts["versions"]
    assert exact["ok"] and trained["difference"] <= trained["tolerance"]
    (hook,) = parts["hook small"]
    assert hook["bytes"] == 4 * 33_834 and hook["plain_ms"]["min"] > 0
    assert parts["together"][0]["both/alone"]["min"] > 0
    for row in parts["h1"]:
        fast, slow = row["shares"]
        assert row["steps"][0] > row["steps"][1] and 0 < fast["compute"] <= 1
        assert slow["wait"] == 0
    assert [row["bytes"] for row in parts["trips"]] == [100_000, 5_000_000]
    assert all(row["trips"] >= 3 for row in parts["trips"])


@minutes
def test_other_back_ends_need_no_tensorflow(jobs):
    code = (f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
            "sys.modules['tensorflow'] = None  # an import of it fails\n"
            "from scripts.gpu import parts, tables, device\n"
            "device.use(device.Place('jax', 'cpu'))\n"
            "from scripts.gpu import fits, networks, trips, versions\n"
            "networks.build('resnet50', 32)\n"
            "print(versions.exact('small')['wrong'])")
    job = jobs.start("without", "-c", code)
    job.ends_well()
    assert job.find("'replace': 0, 'cut': 0, 'rebase': 0")
