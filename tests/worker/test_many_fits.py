"""A tuner's loop: many runs of one process in one server, which keep nothing of those before."""

import psutil
import pytest

FLOATS = 1_000_000
TRAIN = f"""
import sys
import jax.numpy as jnp
import wbsp

for fit in range(26):
    values = {{"x": jnp.zeros({FLOATS})}}
    with wbsp.Worker(values, address=sys.argv[1], worker_index=0, n=40, batch_size=10,
                     epochs=1) as w:
        values = w.values
        for epoch in w.epochs():
            for indices in w.indices():
                values = w.step(0.0, {{"x": values["x"] + 1}})
    print("fit", fit, "is done", flush=True)
"""


def held(process):
    """Memory in MB, files and mapped segments of shared memory of a process."""
    with open(f"/proc/{process.pid}/maps") as maps:
        return process.memory_info().rss / 1e6, process.num_fds(), maps.read().count("memfd:")


@pytest.mark.skipif(not psutil.LINUX, reason="looks into /proc")
def test_processes_keep_nothing_of_the_fits_before(jobs):
    pytest.importorskip("jax")
    (jobs.folder / "train.py").write_text(TRAIN)
    server = jobs.server(workers=1, sync="asp", series=True).listens()
    worker = jobs.start("worker", "train.py", server.address)
    processes = [psutil.Process(job.process.pid) for job in (server, worker)]
    seen = []
    for fit in (5, 25):
        worker.until(f"fit {fit} is done")
        seen.append([held(process) for process in processes])
    worker.ends_well()
    server.ends_well()
    for before, after in zip(*seen, strict=True):
        # one model is 4 MB; a few vectors more or less are in use at any moment
        assert after[0] - before[0] < 20 * 4 / 2, "megabytes"
        assert after[1] - before[1] < 10, "files"
        assert after[2] - before[2] < 6, "segments"
