"""Drawn from made-up runs (see conftest.py), whose numbers are known."""

import sys

import matplotlib.image
import pytest

from wbsp.figures import draw, find_runs
from wbsp.figures.__main__ import main


def assert_drawn(path):
    """Not blank: several colors, and ink in more than a corner."""
    pixels = matplotlib.image.imread(path)[..., :3]
    assert pixels.std() > 0.05
    ink = (pixels < 0.98).any(axis=2)
    height, width = ink.shape
    assert ink[: height // 2].any() and ink[height // 2:].any()
    assert ink[:, : width // 2].any() and ink[:, width // 2:].any()


def test_everything_is_drawn_for_several_models_and_seeds(make_run, tmp_path):
    runs = [make_run(f"{sync}/run-{seed}", sync, seed, accuracy=lambda t, s=seed: 0.05 * t - s / 99)
            for sync in ("bsp", "wbsp") for seed in (0, 1)]
    files = draw(runs, tmp_path / "figures", target=0.5)
    assert {f.name for f in files} == {
        "curves.png", "time_to_target.png", "time_shares.png", "staleness.png", "figures.md",
        *(f"timeline_{name}.png" for name in ("1_bsp", "2_bsp", "3_wbsp", "4_wbsp")),
        *(f"trace_{name}.json" for name in ("1_bsp", "2_bsp", "3_wbsp", "4_wbsp"))}
    for path in files:
        if path.suffix == ".png":
            assert_drawn(path)


def test_one_run_without_a_target_is_enough(make_run, tmp_path):
    files = draw([make_run("only", "wbsp")], tmp_path / "figures")
    names = {f.name for f in files}
    assert {"curves.png", "time_shares.png", "timeline_1_wbsp.png"} <= names
    assert "time_to_target.png" not in names


def test_a_run_killed_at_its_start_leaves_out_what_it_has_no_data_for(make_run, tmp_path):
    files = draw([make_run("killed", "wbsp", rounds=0, ended=False)], tmp_path / "figures", 0.5)
    assert [f.name for f in files] == ["trace_1_wbsp.json", "figures.md"]


def test_command_line_prints_the_files_it_wrote(make_run, tmp_path, capsys):
    make_run("runs/bsp/run-001", "bsp")
    make_run("runs/wbsp/run-001", "wbsp")
    assert main([str(tmp_path / "runs"), "--target=0.85", "--window=2:5"]) == 0
    printed = capsys.readouterr().out.split()
    folder = tmp_path / "runs" / "figures"
    assert sorted(printed) == sorted(str(path) for path in folder.iterdir())
    assert str(folder / "timeline_2_wbsp.png") in printed


@pytest.mark.parametrize("arguments, words", [
    (["{tmp}/nowhere"], "nowhere does not exist"),
    (["{tmp}/empty"], "no run.json"),
    (["{tmp}/run", "--target=85"], "0.85"),
    (["{tmp}/run", "--window=5:2"], "START:END"),
    (["{tmp}/run", "--window=100:200"], "lasted 20 s"),
])
def test_bad_input_is_refused_in_one_line(make_run, tmp_path, capsys, arguments, words):
    make_run("run", "wbsp")
    (tmp_path / "empty").mkdir()
    assert main([argument.format(tmp=tmp_path) for argument in arguments]) == 1
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_missing_matplotlib_is_reported_in_one_line(make_run, tmp_path, monkeypatch, capsys):
    make_run("run", "wbsp")
    for name in [n for n in sys.modules if n.startswith("wbsp.figures.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("bars", "curves", "style", "table", "timeline"):
        monkeypatch.delattr(f"wbsp.figures.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "pip install matplotlib" in error and error.count("\n") == 1


def test_runs_are_found_below_a_folder_once_each(make_run, tmp_path):
    make_run("runs/wbsp/run-001", "wbsp")
    make_run("runs/bsp/run-001", "bsp")
    runs = find_runs([tmp_path / "runs", tmp_path / "runs" / "wbsp" / "run-001"])
    assert [run.settings["sync"] for run in runs] == ["bsp", "wbsp"]


def test_a_target_may_be_of_another_metric(make_run, tmp_path):
    """The loss of these runs is 2.3 less their accuracy, which grows by 0.1 a second."""
    runs = [make_run("a", "wbsp", text="Python 3"), make_run("b", "bsp", text="Python 3")]
    files = draw(runs, tmp_path / "figures", target="loss:1.8")
    assert tmp_path / "figures/time_to_target.png" in files
    page = (tmp_path / "figures/figures.md").read_text()
    assert "## Time to loss 1.8" in page and "| time to loss 1.8 |" in page
    by_accuracy = draw(runs, tmp_path / "others", target=0.5)
    assert len(by_accuracy) == len(files)
    assert [run.time_to("loss:1.8") for run in runs] == [run.time_to(0.5) for run in runs]
