"""A checkpoint is complete or missing, and is read back unchanged."""

import json
import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from full_disk import full_at
from safetensors import safe_open
from safetensors.numpy import save_file

from wbsp.core.engine import Engine
from wbsp.core.stats import MemberState, Report
from wbsp.core.store import Store
from wbsp.ps.checkpoint.format import Checkpoint, load, save
from wbsp.ps.checkpoint.state import FORMAT, RunState, Totals, check_run
from wbsp.sync import Push, create
from wbsp.tensors.frozen import FrozenValues
from wbsp.tensors.layout import TensorSpec

LAYOUT = [TensorSpec("conv/kernel", (3, 2)), TensorSpec("scale", ()), TensorSpec("scale", (4,)),
          TensorSpec("a name / with \"quotes\" and ü", (0,))]
STATE = RunState(version=7, elapsed=1.5, next_seq={0: 3}, totals=(3, 96),
                 members={0: MemberState(steps=3)}, reports={0: Totals(steps=3, loss=0.5)})


def checkpoint(first=0.0):
    return Checkpoint(np.arange(11, dtype=np.float32) + np.float32(first), LAYOUT, STATE)


def test_a_checkpoint_is_loaded_as_it_was_saved(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save(path, checkpoint())
    loaded = load(path)
    assert loaded.vector.tobytes() == checkpoint().vector.tobytes()
    assert loaded.vector.dtype == np.float32
    assert [(s.name, tuple(s.shape)) for s in loaded.layout] == LAYOUT
    assert loaded.state == STATE
    assert os.listdir(tmp_path) == [path.name], "nothing else is left behind"


def test_the_state_of_an_outer_step_returns_too(tmp_path):
    outer = {"velocity": np.arange(11, dtype=np.float32) - 5, "versions": np.ones(1, np.float32)}
    save(tmp_path / "c", checkpoint()._replace(outer=outer))
    loaded = load(tmp_path / "c")
    assert loaded.vector.tobytes() == checkpoint().vector.tobytes()
    assert [(s.name, tuple(s.shape)) for s in loaded.layout] == LAYOUT
    assert {name: vector.tolist() for name, vector in loaded.outer.items()} == {
        name: vector.tolist() for name, vector in outer.items()}


def test_frozen_values_are_loaded_with_the_vector(tmp_path):
    frozen = FrozenValues([TensorSpec("b/0", (2, 2)), TensorSpec("a", ())],
                          np.arange(5, dtype=np.float32))
    save(tmp_path / "c", checkpoint()._replace(frozen=frozen, outer={"v": np.ones(11, "f4")}))
    loaded = load(tmp_path / "c")
    assert loaded.vector.tobytes() == checkpoint().vector.tobytes() and set(loaded.outer) == {"v"}
    assert [(s.name, tuple(s.shape)) for s in loaded.frozen.layout] == frozen.layout
    assert loaded.frozen.vector.tobytes() == frozen.vector.tobytes()
    assert loaded.frozen.digest == frozen.digest


def test_safetensors_reads_a_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save(path, checkpoint())
    with safe_open(path, "numpy") as file:
        assert np.array_equal(file.get_tensor("00000/conv/kernel"),
                              np.arange(6, dtype=np.float32).reshape(3, 2))
        said = json.loads(file.metadata()["wbsp"])
    assert (said["format"], said["version"], said["next_seq"]) == (FORMAT, 7, {"0": 3})
    assert RunState.from_json(said) == STATE


@pytest.mark.parametrize("count", [100, 100_020])  # numbers of two digits, and of five and six
def test_many_variables_keep_their_order(tmp_path, count):
    layout = [TensorSpec(f"v{count - i}", (1,)) for i in range(count)]
    vector = np.arange(count, dtype=np.float32)
    save(tmp_path / "c", Checkpoint(vector, layout, STATE))
    loaded = load(tmp_path / "c")
    assert np.array_equal(loaded.vector, vector)
    assert [spec.name for spec in loaded.layout] == [spec.name for spec in layout]


@pytest.mark.parametrize("step", ["write", "os.fsync", "os.replace"])
def test_a_full_disk_leaves_the_previous_one(tmp_path, monkeypatch, step):
    path = tmp_path / "checkpoint.safetensors"
    save(path, checkpoint())

    def crash(*args):
        raise OSError("File too large")
    if step != "write":
        monkeypatch.setattr(f"wbsp.runlog.files.{step}", crash)
    size = path.stat().st_size - 10 if step == "write" else -1
    with full_at(size), pytest.raises(OSError, match="File too large"):
        save(path, checkpoint(first=100))
    assert np.array_equal(load(path).vector, checkpoint().vector)
    assert os.listdir(tmp_path) == [path.name]


def test_the_umask_sets_the_mode_of_a_checkpoint(tmp_path):
    before = os.umask(0o027)
    try:
        save(tmp_path / "c", checkpoint())
    finally:
        os.umask(before)
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o640


def test_nothing_to_resume_is_one_clear_line(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint at .*absent, so no run can be"):
        load(tmp_path / "absent")


@pytest.mark.parametrize("damage", ["cut short", "other bytes", "empty"])
def test_another_file_is_refused_in_one_line(tmp_path, damage):
    path = tmp_path / "checkpoint.safetensors"
    save(path, checkpoint())
    whole = path.read_bytes()
    path.write_bytes({"cut short": whole[:-5], "other bytes": b"PK" + whole, "empty": b""}[damage])
    with pytest.raises(ValueError, match="is not a wbsp checkpoint") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def written(folder, state):
    """A checkpoint's file with this state, as JSON."""
    path = folder / "checkpoint.safetensors"
    save_file({"0/x": np.zeros(3, np.float32)}, path, {"wbsp": json.dumps(state)})
    return path


@pytest.mark.parametrize("change, says", [
    ({"elapsed": "x"}, "Expected `float`, got `str` - at `$.elapsed`"),
    ({"elapsed": float("inf")}, "`$.elapsed`"),
    ({"version": -1}, "`$.version`"),
    ({"next_seq": {"a": 1}}, "`$.next_seq`"),
    ({"answers": {"0": [1]}}, "`$.answers[...]`"),
    ({"awaited": 3}, "`$.awaited`"),
    ({"members": {"0": {"rejected": 1}}}, "`$.members[...].rejected`"),
    ({"reports": {"0": {"steps": "many"}}}, "`$.reports[...].steps`"),
    ({"staleness": {"pushes": 1}}, "`$.staleness`"),
    ({"staleness": {"pushes": 1, "sum": 1, "most": 1}}, "`$.staleness`"),
    ({"format": "x"}, "`$.format`"),
    ({"places": {"0": {"owner": 1, "earlier": None}}}, "`$.places[...].owner`"),
    ({"layers": [["layer words", "aa", [0, 1]]]}, "`$.layers[0][2]`")])
def test_a_state_that_no_server_made_is_refused_in_one_line(tmp_path, change, says):
    path = written(tmp_path, STATE.to_json() | change)
    with pytest.raises(ValueError) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith(f"{path} is not a wbsp checkpoint: its state is damaged: ")
    assert says in text and "\n" not in text


@pytest.mark.parametrize("missing", ["elapsed", "next_seq", "totals"])
def test_an_incomplete_state_is_refused_in_one_line(tmp_path, missing):
    state = STATE.to_json()
    del state[missing]
    with pytest.raises(ValueError, match=f"its state is damaged: .*`{missing}`"):
        load(written(tmp_path, state))


def test_a_state_of_an_older_release_is_read(tmp_path):
    state = {"version": 7, "elapsed": 1.5, "next_seq": {"0": 3}, "totals": [3, 96],
             "reports": {"0": {"steps": 3, "push_seconds": -0.5}}, "later": "dropped"}
    loaded = load(written(tmp_path, state)).state
    assert (loaded.version, loaded.next_seq, loaded.totals) == (7, {0: 3}, (3, 96))
    assert loaded.reports[0].steps == 3 and loaded.reports[0].pushes == 0
    assert (loaded.awaited, loaded.owed, loaded.layers, loaded.over) == (None, None, None, False)


def test_a_state_of_a_later_format_is_refused_in_one_line(tmp_path):
    path = written(tmp_path, STATE.to_json() | {"format": FORMAT + 1})
    with pytest.raises(ValueError, match="its state has format 3, of a later release"):
        load(path)


@pytest.mark.parametrize("name, size", [("velocity", 3), ("versions", 11)])
def test_an_outer_step_of_another_model_is_refused_in_one_line(tmp_path, name, size):
    path = tmp_path / "checkpoint.safetensors"
    save(path, checkpoint()._replace(outer={name: np.zeros(size, np.float32)}))
    with pytest.raises(ValueError, match=f"its '{name}' is F32.{size}., and not"):
        load(path)


def test_every_field_of_a_run_state_is_checked(tmp_path):
    """A field that a state gains is to be checked, too."""
    engine = Engine(create("bsp"), Store(np.zeros(3, np.float32)), 1)
    engine.join(0, 0.0)
    engine.push(Push(0, 0, 0, 2, 16, 0.5), np.full(3, np.nan, np.float32), 1.0)
    state = RunState(**vars(engine.state()), elapsed=1.0)
    assert RunState.from_json(json.loads(json.dumps(state.to_json()))).members[0].rejected == {
        "not finite": 1}
    assert {field.name for field in fields(Report)} == set(Totals.__annotations__)


@pytest.mark.parametrize("run, says", [
    ({"id": "ab", "epoch": "x", "workers": 2}, "`$.epoch`"),
    ({"id": 5}, "`$.id`"),
    ({"id": "ab", "epoch": 1, "workers": 2, "standby": 5}, "`$.standby`"),
    ({"id": "ab", "epoch": 1, "standby": "localhost:1"}, "names a standby, and lacks workers"),
    ({"epoch": 1, "workers": 2, "standby": "localhost:1"}, "names a standby, and lacks id")])
def test_settings_that_no_server_wrote_are_refused_in_one_line(run, says):
    with pytest.raises(ValueError) as caught:
        check_run(run, "runs/x/run.json")
    assert str(caught.value).startswith("runs/x/run.json ") and says in str(caught.value)


def test_settings_of_earlier_releases_are_taken():
    for run in ({}, {"id": "ab", "epoch": 2, "wire": "float32", "workers": 2, "standby": None}):
        assert check_run(run, "") is run


@pytest.mark.parametrize("tensors, metadata, says", [
    ({"0/x": np.float32}, None, "its state has no version"),
    ({"0/x": np.float32}, "no json", "Expecting value"),
    ({"0/x": np.float32}, "[]", "its state has no version"),
    ({"0/x": np.float32}, "{}", "its state has no version"),
    ({"0/x": np.float32}, '{"version": "7"}', "its state has no version"),
    ({"0/x": np.float64}, '{"version": 7}', "it holds '0/x' of type F64"),
    ({"x": np.float32}, '{"version": 7}', "it holds 'x' of type F32"),
])
def test_tensors_of_something_else_are_refused_in_one_line(tmp_path, tensors, metadata, says):
    path = tmp_path / "checkpoint.safetensors"
    save_file({name: np.zeros(3, dtype) for name, dtype in tensors.items()}, path,
              metadata and {"wbsp": metadata})
    with pytest.raises(ValueError) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith(f"{path} is not a wbsp checkpoint: ") and says in text
    assert "\n" not in text


def test_a_file_of_format_1_is_read_with_all_that_it_holds():
    """The file was written by the release before `FORMAT` became 2, with a value in each field."""
    state = load(Path(__file__).with_name("format-1.safetensors")).state
    assert state.members == {
        0: MemberState(steps=9, samples=144, seconds=4.5, pushes=9, base=11, rounds=9, sgd=True),
        1: MemberState(steps=4, samples=64, seconds=8.0, pushes=4, base=10, rounds=6,
                       rejected={"not finite": 1, "too old": 2})}
    assert (state.version, state.next_seq, state.totals) == (12, {0: 9, 1: 4}, (13, 208))
    assert state.answers[1] == (3, False, "not finite", 0.0, 5)
    assert state.work is not None and state.work.struck[1].doubted == [(80, 96)]
    assert state.above is not None and state.above.kept == (1, 16, 0.5)
    missing = [one.name for one in fields(state)
               if one.name not in ("ended", "stopped", "over", "layers", "entries", "owed")
               and not getattr(state, one.name)]
    assert not missing, "each field has a value in that file"


def test_a_total_of_format_1_that_is_no_table_is_refused_in_one_line():
    with pytest.raises(ValueError, match="its state is damaged: steps is no table by workers"):
        RunState.from_json({"version": 7, "elapsed": 1.5, "next_seq": {}, "totals": [0, 0],
                            "steps": 3})
