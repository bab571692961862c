"""The scripts in `examples/` run by the commands in their first lines, and train."""

import importlib.util

import pytest
from back_ends import TORCH
from jobs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.long]


HUGGINGFACE = pytest.param("huggingface", marks=pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="pip install -e '.[huggingface]'"))


@pytest.mark.parametrize("kind", ["tensorflow", "jax", TORCH, HUGGINGFACE])
def test_an_example_trains_with_a_fast_and_a_slow_worker(jobs, kind):
    server = jobs.server(sync="auto" if kind == "huggingface" else "pcc").listens()
    script = ROOT / f"examples/train_{'pytorch' if kind == 'torch' else kind}.py"
    workers = [jobs.start(f"worker{index}", script, f"--sleep={(0, 0.2)[index]}", "--epochs=2",
                          WBSP_SERVER=server.address, OMP_NUM_THREADS="1")
               for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    first, second = (job.find("^all 2 epochs are trained.*; accuracy ")[0].rpartition("; ")[2]
                     for job in workers)
    assert first == second, "both have the same model"
    # a quarter, or a tenth, is by chance; a busy machine makes few versions in two epochs
    least = 0.4 if kind == "huggingface" else 0.15
    assert float(first.split()[-1]) > least
