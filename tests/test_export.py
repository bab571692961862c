"""`wbsp export`: a version of a run in a file that other programs read."""

import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

import wbsp
from wbsp.core.engine import Engine
from wbsp.core.store import Store
from wbsp.export import main
from wbsp.ps.checkpoint.format import Checkpoint, save
from wbsp.ps.checkpoint.state import RunState
from wbsp.ps.checkpoint.writer import BEST, CHECKPOINT
from wbsp.sync import create
from wbsp.tensors.frozen import FrozenValues
from wbsp.tensors.layout import Entry, TensorSpec, kept_entries

LAYOUT = [TensorSpec("net/dense/kernel", (2, 2)), TensorSpec("net/dense/bias", (2,)),
          TensorSpec("net/dense/bias", (1,))]
STILL = FrozenValues([TensorSpec("net/still", (1,))], np.float32([9]))


def saved(folder, name=CHECKPOINT, version=7, **state):
    known = {**vars(Engine(create("asp"), Store(np.zeros(7, np.float32), version), 2).state()),
             "elapsed": 3.0, **state}
    save(folder / name, Checkpoint(np.arange(7, dtype=np.float32), LAYOUT, RunState(**known),
                                   frozen=STILL))


def test_variables_have_the_names_of_their_framework(tmp_path, capsys):
    saved(tmp_path, local=["net/own"], entries=[
        Entry("net/tied", "net/still"), Entry("net/count", "", "int64", (), b"\x05" + bytes(7)),
        Entry("net/huge", "", "int64", (10**6,)), Entry("net/odd", "", "int64", (2,), b"\x00")])
    saved(tmp_path, BEST, version=4)
    out = tmp_path.parent / f"{tmp_path.name}.safetensors"
    assert main([str(tmp_path), str(out)]) == 0
    found = load_file(out)
    assert found["net/dense/kernel"].tolist() == [[0, 1], [2, 3]]
    assert found["net/dense/bias"].tolist() == [4, 5] and found["net/dense/bias#2"].tolist() == [6]
    assert found["net/still"] == found["net/tied"] == [9] and found["net/count"].item() == 5
    assert len(found) == 6
    assert capsys.readouterr().out.splitlines() == [
        f"{out}: version 7 of {tmp_path}, 6 tensors",
        "net/count is as when training began: versions hold floats alone",
        "left out: net/own (local: each worker keeps its own), net/huge (int64: versions hold "
        "floats alone), net/odd (int64: versions hold floats alone); load the file with "
        "strict=False"]
    assert main([str(tmp_path), str(out), "--best"]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: version 4 of ")


@pytest.mark.parametrize("run, out, options, line", [
    ("nowhere", "a.safetensors", [], "nowhere holds no version: there is no checkpoint"),
    ("run", "a.pt", [], "a.pt does not end in .safetensors"),
    ("run", "run/checkpoint.safetensors", [], "is in the folder of the run"),
    ("run", "none/a.safetensors", [], "cannot write .*a.safetensors: No such file or directory"),
    ("run", "a.safetensors", ["--best"], "run holds no best version"),
    ("damaged", "a.safetensors", [], "is not a wbsp checkpoint")])
def test_a_version_that_cannot_be_exported_is_reported_in_one_line(
        tmp_path, capsys, run, out, options, line):
    for name in ("run", "damaged"):
        (tmp_path / name).mkdir()
        saved(tmp_path / name)
    (tmp_path / "damaged" / CHECKPOINT).write_bytes(b"damaged")
    assert main([str(tmp_path / run), str(tmp_path / out), *options]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("export: ") and re.search(line, said)


def test_entries_are_kept_up_to_a_limit():
    some = [Entry(f"count{number}", "", "int64", (), bytes(1 << 15)) for number in range(100)]
    assert 0 < len(kept_entries(some)) < 10 and kept_entries(some[:3]) == some[:3]
    assert kept_entries([Entry("a" * 2000, "b"), Entry("a", "b")]) == [Entry("a", "b")]


def test_a_module_of_pytorch_takes_the_file_of_its_run(jobs, tmp_path):
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.norm = nn.Embedding(5, 4), nn.BatchNorm1d(4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.emb.weight
            self.emb.weight.requires_grad_(True)
            self.still = nn.Parameter(torch.ones(2), requires_grad=False)
            self.register_buffer("order", torch.arange(5))

        def forward(self, x):
            return self.head(self.norm(self.emb(self.order[x])))

    server = jobs.server(workers=1).listens()
    net = Net()
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    with wbsp.Worker(net, address=server.address, worker_index=0, say=lambda text: None) as w:
        for _ in range(5):
            loss = nn.functional.cross_entropy(net(torch.arange(5)), torch.arange(5))
            loss.backward()
            optimizer.step()
            w.step(loss)
    server.ends_well()
    out = tmp_path / "net.safetensors"
    done = subprocess.run([sys.executable, "-m", "wbsp", "export", str(server.folder), str(out)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "order and 1 more are as when training began" in done.stdout
    other = Net()
    other.load_state_dict({name: torch.from_numpy(one) for name, one in load_file(out).items()},
                          strict=True)
    assert torch.equal(other.emb.weight, net.emb.weight) and other.head.weight is other.emb.weight
    assert torch.equal(other.norm.running_mean, net.norm.running_mean)
    assert torch.equal(other.order, net.order)
