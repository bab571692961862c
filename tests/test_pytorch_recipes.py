"""The scripts on the page of PyTorch recipes run as they stand, as two unequal workers."""

import importlib.util
import re
import shutil

import pytest
from docs_code import python_below
from jobs import ROOT

PAGE = "how-to/pytorch.md"
NEEDS = {"PyTorch Lightning": "lightning", "Accelerate": "accelerate"}
# What a test adds: a slow worker, and the sum of the final model's floats.
SLOW = """
import time
step = wbsp.Worker.step
def slow(self, *args, **given):
    time.sleep({seconds})
    return step(self, *args, **given)
wbsp.Worker.step = slow
"""
SUM = """
print("sum", *[float(t.double().norm()) for t in model.state_dict().values()])
"""

torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None,
                           reason="PyTorch is not installed: scripts/test_torch.sh")
pytestmark = [pytest.mark.slow, pytest.mark.long, torch]


def recipes():
    text = (ROOT / "docs" / PAGE).read_text()
    for heading, below in re.findall(r"^## (.*)\n((?:(?!^## ).*\n)*)", text, re.MULTILINE):
        if "```python" in below:
            package = NEEDS.get(heading, "torch")
            yield pytest.param(heading, id=heading, marks=pytest.mark.skipif(
                importlib.util.find_spec(package) is None, reason=f"pip install {package}"))


def worker(jobs, server, code, index, seconds=0.0, name="worker"):
    begin, end = code.split("import wbsp\n", 1)
    path = jobs.folder / f"{name}{index}.py"
    path.write_text(f"{begin}import wbsp\n{SLOW.format(seconds=seconds)}{end}{SUM}")
    return jobs.start(f"{name}{index}", path, WBSP_SERVER=server.address,
                      WBSP_WORKER_INDEX=str(index), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")


def finals(workers):
    return {job.find("^sum ")[0] for job in workers}


@pytest.mark.parametrize("heading", [
    one for one in recipes() if one.id != "Validate"])
def test_a_recipe_trains_one_model_on_two_unequal_workers(jobs, heading):
    if heading == "torch.compile" and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    server = jobs.server(sync="pcc").listens()
    code = python_below(PAGE, heading)
    workers = [worker(jobs, server, code, index, (0.0, 0.05)[index]) for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    assert all(job.find("^all 3 epochs are trained$") for job in workers)
    assert len(finals(workers)) == 1
    assert len({event["worker"] for event in server.events("accept")}) == 2
    assert server.find("epoch 3 of 3 is trained")


LIGHTNING_AHEAD = """
class Shared:
    def __len__(self):
        return len(w.sampler)

    def __iter__(self):
        for _ in w.epochs():
            yield from w.batches(loader)
"""


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="pip install lightning")
@pytest.mark.parametrize("more", ["", "accumulate_grad_batches=2, "])
def test_lightning_trains_all_by_a_loader_that_reads_ahead(jobs, more):
    code = python_below(PAGE, "PyTorch Lightning")
    page = (ROOT / "docs" / PAGE).read_text()
    said = [line.strip().partition("  #")[0] for line in page.splitlines()]
    assert all(line.strip() in said for line in LIGHTNING_AHEAD.splitlines())
    code = code.replace("model = Network()", f"{LIGHTNING_AHEAD}\n\nmodel = Network()")
    code = code.replace("batch_sampler=w.sampler)", "batch_sampler=w.sampler, num_workers=1)")
    code = code.replace("max_epochs=3", f"{more}max_epochs=1").replace(
        "fit(model, loader)", "fit(model, Shared())")
    server = jobs.server(sync="pcc").listens()
    workers = [worker(jobs, server, code, index, (0.0, 0.05)[index]) for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    assert all(job.find("^all 3 epochs are trained$") for job in workers)
    assert len(finals(workers)) == 1


def test_an_optimizers_state_outlives_its_process(jobs):
    server = jobs.server(workers=1, sync="pcc").listens()
    code = python_below(PAGE, "Keep the optimizer's state")
    dies = code.replace("        torch.save(", "        if epoch == 1: os._exit(9)\n"
                                               "        torch.save(")
    assert dies != code
    assert worker(jobs, server, dies, 0, name="dies").ends() == 9
    assert (jobs.folder / "optimizer-0.pt").exists()
    told = code.replace("with w:\n", "print('moments of', len(optimizer.state_dict()['state']))\n"
                                     "with w:\n")
    again = worker(jobs, server, told, 0, name="again")
    for job in (again, server):
        job.ends_well()
    assert again.find("^moments of 4$") and again.find("^all 3 epochs are trained$")
    assert not (jobs.folder / "optimizer-0.pt").exists()


def test_versions_are_validated_during_the_training(jobs):
    server = jobs.server("--best=accuracy", workers=1, sync="pcc").listens()
    validates = jobs.start("validates", "-c", python_below(PAGE, "Validate"),
                           WBSP_SERVER=server.address, CUDA_VISIBLE_DEVICES="")
    code = python_below(PAGE, "Accumulate gradients")
    for job in (worker(jobs, server, code, 0, 0.005), server, validates):
        job.ends_well()
    assert validates.find(r"^2 \d+$"), "the last epoch's version"
    newest = server.events("evaluation")[-1]
    assert 0 < newest["accuracy"] <= 1 and newest["loss"] > 0
    assert (server.folder / "best.safetensors").exists()
