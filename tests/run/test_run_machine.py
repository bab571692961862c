"""What `wbsp run` gives each worker of its machine."""

import pytest

from wbsp.run import machine
from wbsp.run.machine import of_worker, visible_gpus, without_task


@pytest.fixture
def nvidia_smi(tmp_path):
    def environment(text):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    return environment


def test_the_visible_gpus_are_those_of_the_driver(nvidia_smi, monkeypatch):
    environment = nvidia_smi("echo 0; echo 1; echo 2")
    monkeypatch.setenv("PATH", environment["PATH"])
    assert visible_gpus(environment) == ["0", "1", "2"]
    environment = nvidia_smi("echo 'No devices were found'; exit 6")
    assert visible_gpus(environment) == []


@pytest.mark.parametrize("said, gpus", [
    ("2,0", ["2", "0"]), (" 1 , GPU-8ad1", ["1", "GPU-8ad1"]), ("", []), ("-1", []),
    ("0,-1,1", ["0"])])
def test_cuda_visible_devices_comes_before_the_driver(said, gpus):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": said, "PATH": "/nowhere"}) == gpus


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert visible_gpus({"PATH": "/nowhere"}) == []


def test_workers_get_the_gpus_in_turn():
    given = [of_worker(number, 3, ["4", "7"], {}) for number in range(3)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in given] == ["4", "7", "4"]
    assert given[0]["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"  # they share its memory
    alone = of_worker(1, 2, ["4", "7"], {})
    assert alone["CUDA_VISIBLE_DEVICES"] == "7" and "TF_FORCE_GPU_ALLOW_GROWTH" not in alone


def test_without_a_gpu_the_variable_stays_as_it_is():
    assert "CUDA_VISIBLE_DEVICES" not in of_worker(0, 2, [], {})
    assert of_worker(0, 2, [], {"CUDA_VISIBLE_DEVICES": ""})["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("cores, workers, share", [(8, 2, "4"), (8, 3, "2"), (2, 4, "1")])
def test_each_worker_uses_its_share_of_the_cores(monkeypatch, cores, workers, share):
    monkeypatch.setattr(machine, "cores", lambda: cores)
    given = of_worker(0, workers, [], {})
    assert {given[name] for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS",
                                     "TF_NUM_INTEROP_THREADS", "NPROC")} == {share}
    assert of_worker(0, workers, [], {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"


def test_the_task_of_another_launcher_is_taken_away_and_access_stays():
    said = {"TF_CONFIG": "{}", "SLURM_PROCID": "3", "JOB_COMPLETION_INDEX": "1",
            "WBSP_SERVER": "x:1", "WBSP_WORKER_INDEX": "9", "WBSP_WORKER_NUM": "9"}
    kept = {"WBSP_TOKEN_FILE": "token", "HOME": "/root"}
    assert without_task({**said, **kept}) == kept
