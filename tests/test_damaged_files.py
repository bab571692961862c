"""Whatever another process or user has left in a file, its reader returns a result or raises one
error in one line: no other exception, no wait, and no memory for what a file only claims."""

import json
import os
import struct
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_runs import write_run

import wbsp.export
from wbsp.core.goal import Goal
from wbsp.figures.load import find_runs, gather, readable, times_to
from wbsp.process.token import read_token
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.ps.checkpoint.resume import Runs
from wbsp.ps.checkpoint.state import RunState
from wbsp.ps.sessions.versions import read_part
from wbsp.runlog.folder import is_held, read_settings
from wbsp.runlog.reader import read_run
from wbsp.tensors.frozen import FrozenValues
from wbsp.tensors.layout import Entry, TensorSpec
from wbsp.watch.metrics import exposition
from wbsp.watch.run import WatchedRun

MIB = 1 << 20
DEEP = b"[" * 100_000 + b"]" * 100_000
TOKENS = [b"null", b"-1", b"1e400", b"9" * 5000, b'"\\ud800"', b"{}", b"[[]]", b'"a\\n\\u001b[2J"',
          b"true", b"1e308", b"\xff", b"\0", b"\n", DEEP, b'{"a":' * 60 + b"1" + b"}" * 60,
          b"99999999999"]


def whole(run):
    """Read all that a run's folder has."""
    return [run.events, run.evaluations, run.spans, run.summary, run.time_to(0.5)]


def figures(folder):
    for stats in gather(readable(find_runs([folder]), lambda line: None)):
        times_to([stats], Goal.of(0.5))
        assert isinstance(stats.name, str)
        for of in ("versions", "version_number", "staleness", "steps", "workers", "seconds",
                   "shares", "total_shares", "last_accuracy", "duration"):
            getattr(stats, of)


def watch(folder):
    run = WatchedRun(folder, "a run")
    run.refresh()
    exposition([("it", run.state())])
    run.pack()


def served(folder):
    read_part(folder / "version-1.safetensors", 0)


def resumed(folder):
    runs = Runs(folder.parent.name, folder.parent.parent, 2606, True)
    runs.to_resume()
    runs.say_of_others(lambda line: None)


READERS = {
    "run.json": [read_settings, lambda folder: whole(read_run(folder)), figures, watch, resumed],
    "events.jsonl": [lambda folder: whole(read_run(folder)), figures, watch],
    "events_wk1.jsonl": [lambda folder: whole(read_run(folder)), figures, watch],
    "summary.json": [lambda folder: whole(read_run(folder)), figures, watch],
    "checkpoint.safetensors": [
        lambda folder: checkpoint.load(folder / "checkpoint.safetensors"), resumed,
        lambda folder: wbsp.export.export(folder, folder.parent / "out.safetensors")],
    "version-1.safetensors": [served],
    "token": [lambda folder: read_token(folder / "token")],
    ".server": [is_held, resumed],
}
CASES = [(name, reader) for name, readers in READERS.items() for reader in range(len(readers))]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The folder of a run, with one of each file."""
    folder = tmp_path_factory.mktemp("runs") / "bsp" / "run-001"
    write_run(folder, "bsp", rounds=4, id="ab12", epoch=1, port=2606, standby=None)
    state = RunState(version=7, elapsed=1.5, next_seq={0: 3}, totals=(3, 96), entries=[
        Entry("tied", "conv/kernel"), Entry("count", "", "int64", (1,), bytes(8))], local=["own"])
    checkpoint.save(folder / "checkpoint.safetensors", checkpoint.Checkpoint(
        np.arange(11, dtype=np.float32), [TensorSpec("conv/kernel", (3, 2)), TensorSpec("b", (5,))],
        state, {"velocity": np.ones(11, np.float32)},
        FrozenValues([TensorSpec("still", (2,))], np.ones(2, np.float32))))
    (folder / "version-1.safetensors").write_bytes(bytes(100))
    (folder / "token").write_bytes(b"a" * 64)
    (folder / ".server").write_bytes(b"process 1")
    return folder


def attempt(reader, folder):
    """Run a reader; return its error, after a check that it is one that a user can read."""
    tracemalloc.start()
    try:
        reader(folder)
    except (OSError, ValueError) as error:
        text = str(error)
        assert text and text.isprintable(), repr(text)
        return error
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        size = sum(min(path.stat().st_blocks * 512, path.stat().st_size)
                   for path in folder.iterdir() if path.is_file())
        assert most < 24 * MIB + 30 * size, f"{most:,} bytes of memory for files of {size:,}"
    return None


def replaced(folder, name, content):
    """Put something in place of a file; return what undoes that."""
    path, kept = folder / name, folder.parent / ".kept"
    path.replace(kept)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)

    def undo():
        with suppress(FileNotFoundError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        kept.replace(path)

    return undo


@st.composite
def damages(draw):
    """A function that damages a file's content, text with a structure or bytes."""
    kind = draw(st.sampled_from(["bytes", "cut", "flip", "token", "token", "token", "repeat"]))
    at, token = draw(st.floats(0, 1)), draw(st.sampled_from(TOKENS))
    noise = draw(st.binary(max_size=40))

    def damage(content):
        place = int(at * len(content))
        if kind == "bytes":
            return noise
        if kind == "cut":
            return content[:place]
        if kind == "flip":
            return content[:place] + noise + content[place + len(noise):]
        if kind == "repeat":
            return content[:place] + content
        # in place of a value of JSON
        starts = [i + 1 for i, c in enumerate(content[:50_000]) if c in b":,["] or [0]
        start = starts[int(at * (len(starts) - 1))]
        end = next((i for i in range(start, len(content)) if content[i] in b",]}\n"), len(content))
        return content[:start] + token + content[end:]

    return damage


@pytest.mark.parametrize("name, reader", CASES)
@settings(max_examples=24, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=damages())
def test_damaged_content_is_a_result_or_one_line(good, name, reader, damage):
    undo = replaced(good, name, damage((good / name).read_bytes()))
    try:
        attempt(READERS[name][reader], good)
    finally:
        undo()


@settings(max_examples=40)
@given(damage=damages(), inside=st.booleans())
def test_a_damaged_header_of_a_checkpoint_is_one_line(good, damage, inside):
    """The damage is in the header or in the state, and their lengths are right."""
    content = (good / "checkpoint.safetensors").read_bytes()
    length, = struct.unpack_from("<Q", content)
    header, data = content[8:8 + length], content[8 + length:]
    if inside:
        parts = json.loads(header)
        state = damage(parts["__metadata__"]["wbsp"].encode()).decode("utf-8", "replace")
        parts["__metadata__"]["wbsp"] = state
        header = json.dumps(parts).encode()
    else:
        header = damage(header)
    undo = replaced(good, "checkpoint.safetensors",
                    struct.pack("<Q", len(header)) + header + data)
    try:
        for reader in READERS["checkpoint.safetensors"]:
            attempt(reader, good)
    finally:
        undo()


def a_pipe(path):
    os.mkfifo(path)


def a_folder(path):
    path.mkdir()


def a_circle(path):
    path.symlink_to(path)


def a_hole(path):
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", 90 << 20))
        file.truncate(200 << 30)


def a_device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", [a_pipe, a_folder, a_circle, a_hole, a_device],
                         ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name, reader", CASES)
def test_a_file_that_is_not_a_runs_is_read_as_none(good, name, reader, kind):
    undo = replaced(good, name, kind)
    try:
        error = attempt(READERS[name][reader], good)
    finally:
        undo()
    if READERS[name][reader] not in (served, resumed, is_held) and kind is not a_circle:
        assert error is not None, "a circle of links counts as no file"


def tensors(*parts, size):
    """A file of these parts of a header, with `size` bytes of data that the disk does not hold."""
    header = json.dumps(dict(parts)).encode()

    def write(path):
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)
    return write


STATE = ("__metadata__", {"wbsp": json.dumps(RunState(
    version=3, elapsed=1.0, next_seq={}, totals=(0, 0)).to_json())})


def tensor(name, shape, begin, end, dtype="F32"):
    return name, {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("write, says", [
    (tensors(STATE, tensor("0/w", [50_000_000_000], 0, 200_000_000_000), size=200_000_000_000),
     "'0/w' has the shape"),
    (tensors(STATE, *(tensor(f"{i}/w", [1 << 32], i << 34, (i + 1) << 34) for i in range(4)),
             size=4 << 34), "float values; 1 to"),
    (tensors(STATE, tensor("0/w", [8], 0, 32), size=31), "its tensors have 32 bytes"),
    (tensors(STATE, tensor("0/w", [8], 0, 32), tensor("1/w", [8], 16, 48), size=48), "32 was due"),
    (tensors(STATE, tensor("0/w", [8], 0, 16), size=16), "has 16 bytes"),
    (tensors(STATE, tensor("0/w", [32], 0, 32, "F8_E4M3"), size=32), "of type F8_E4M3"),
    (tensors(STATE, tensor("0/w", [0, 1 << 40], 0, 0), size=0), "has the shape"),
    (tensors(STATE, size=0), "the model has 0 float values"),
    (tensors(STATE, tensor("0/w\x1b[2J\nx", [8], 0, 32, "F16"), size=32), r"'0/w\x1b[2J\nx'"),
])
def test_a_header_that_does_not_fit_its_file_is_found_before_a_tensor_is_read(tmp_path, write,
                                                                              says):
    path = tmp_path / "checkpoint.safetensors"
    write(path)
    error = attempt(lambda folder: checkpoint.load(path), tmp_path)
    assert isinstance(error, ValueError) and says in str(error)


def test_one_bad_run_is_one_line_among_the_good_ones(tmp_path):
    runs = tmp_path / "bsp"
    for number in (1, 2, 3):
        write_run(runs / f"run-00{number}", "bsp", seed=number)
    (runs / "run-002" / "run.json").write_bytes(DEEP)
    (runs / "run-003" / "events.jsonl").write_bytes(b'{"t": 1\n')
    said = []
    found = readable(find_runs([runs], said.append), said.append)
    assert [run.folder.name for run in found] == ["run-001"]
    assert ["left out" in line and "is damaged" in line and folder in line
            for line, folder in zip(said, ("run-002", "run-003"), strict=True)] == [True, True]
    with pytest.raises(ValueError, match=r"run-002/run.json is damaged"):
        find_runs([runs / "run-002"], said.append)
