"""Every run has its own folder, which holds its settings."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from full_disk import full_at

from wbsp.runlog.folder import (
    folder_of_worker,
    hold_folder,
    read_settings,
    run_folder,
    sync_name,
    write_settings,
)


def test_runs_are_numbered_below_base_dir_and_log_root(tmp_path):
    assert run_folder("wbsp/", tmp_path) == tmp_path / "wbsp" / "run-001"
    assert run_folder("wbsp/", tmp_path) == tmp_path / "wbsp" / "run-002"
    assert run_folder("pcc/", tmp_path) == tmp_path / "pcc" / "run-001"
    assert (tmp_path / "wbsp" / "run-002").is_dir()


def test_an_absolute_base_dir_does_not_lie_under_log_root(tmp_path):
    absolute = tmp_path / "elsewhere" / "ssp"
    assert run_folder(str(absolute) + "/", tmp_path / "runs") == absolute / "run-001"


def test_the_next_number_follows_the_highest_even_beyond_999(tmp_path):
    for name in ("run-009", "run-999", "run-1000", "run-notes"):
        (tmp_path / "wbsp" / name).mkdir(parents=True)
    assert run_folder("wbsp/", tmp_path, resume=True).name == "run-1000"
    assert run_folder("wbsp/", tmp_path).name == "run-1001"


def test_jobs_that_start_at_once_get_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: run_folder("wbsp/", tmp_path), range(64)))
    assert len(set(folders)) == 64


def test_resume_without_a_run_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run to resume in .*wbsp"):
        run_folder("wbsp/", tmp_path, resume=True)
    assert not (tmp_path / "wbsp").exists()


@pytest.mark.parametrize("base_dir, name", [("wbsp/", "wbsp"), ("pcc", "pcc"), ("a/b/ssp/", "ssp"),
                                            (Path("/x/adsp"), "adsp"), ("./bsp/", "bsp")])
def test_the_last_part_names_the_model(base_dir, name):
    assert sync_name(base_dir) == name


@pytest.mark.parametrize("base_dir", ["", ".", "/", "..", "runs/.."])
def test_a_base_dir_without_a_name_is_refused(base_dir, tmp_path):
    with pytest.raises(ValueError, match="names no folder"):
        run_folder(base_dir, tmp_path)


def test_settings_are_read_back_and_replaced_whole(tmp_path):
    write_settings(tmp_path, {"sync": "ssp", "seed": 1, "gone": True})
    write_settings(tmp_path, {"sync": "ssp", "options": {"s": np.int64(3)}, "sleep": np.float32(.5),
                              "data_dir": Path("data"), "clock": "virtual"})
    assert read_settings(tmp_path) == {"sync": "ssp", "options": {"s": 3}, "sleep": 0.5,
                                       "data_dir": "data", "clock": "virtual"}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert json.loads((tmp_path / "run.json").read_text())["sync"] == "ssp"


def test_a_failed_write_leaves_the_old_settings(tmp_path):
    write_settings(tmp_path, {"sync": "ssp"})
    with pytest.raises(TypeError, match="cannot hold"):
        write_settings(tmp_path, {"sync": object()})
    assert read_settings(tmp_path) == {"sync": "ssp"}


def test_a_folder_that_is_no_run_gets_a_clear_line(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run's folder: it holds no run.json"):
        read_settings(tmp_path / "missing")
    run_folder("wbsp/", tmp_path)
    with pytest.raises(FileNotFoundError, match="name one of its runs, such as .*run-001"):
        read_settings(tmp_path / "wbsp")


def test_one_server_a_folder(tmp_path):
    held = hold_folder(tmp_path, "process 17 on alpha")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"locked by a running server \(process 17 on alpha\)"):
            hold_folder(tmp_path, "process 18")
    held.close()
    held = hold_folder(tmp_path, "process 5")
    with pytest.raises(ValueError, match=r"locked by a running server \(process 5\)"):
        hold_folder(tmp_path, "process 18")
    held.close()


def test_a_full_disk_keeps_no_server_from_its_folder(tmp_path):
    with full_at(0):
        held = hold_folder(tmp_path, "process 17")
        with pytest.raises(ValueError, match=r"locked by a running server \(unknown\)"):
            hold_folder(tmp_path, "process 18")
        held.close()


def test_a_worker_keeps_its_files_with_the_servers(tmp_path):
    write_settings(tmp_path, {"id": "a", "seed": 3})
    assert folder_of_worker(tmp_path, {"id": "a"}) == tmp_path
    assert read_settings(tmp_path) == {"id": "a", "seed": 3}


@pytest.mark.parametrize("older", ["run.json", "wk_loss_0_pcc.txt"])
def test_a_worker_does_not_touch_another_run_of_the_same_name(tmp_path, older):
    named = tmp_path / "pcc" / "run-001"
    named.mkdir(parents=True)
    (named / older).write_text('{"id": "a"}')
    for _ in range(2):  # the second time: a later incarnation, or another worker of the run
        folder = folder_of_worker(named, {"id": "b", "sync": "pcc"})
        assert folder == tmp_path / "pcc" / "run-001-b"
        assert read_settings(folder) == {"id": "b", "sync": "pcc"}
    assert [path.name for path in named.iterdir()] == [older]


def test_workers_that_start_at_once_agree_on_a_folder(tmp_path):
    named = tmp_path / "pcc" / "run-001"
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda worker: folder_of_worker(named, {"id": str(worker % 2)}),
                                range(16)))
    assert len(set(folders)) == 2 and len(set(folders[::2])) == len(set(folders[1::2])) == 1
