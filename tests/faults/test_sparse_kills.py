"""Updates of a few rows of a table, while the server, its shards or its standby are killed.

Each worker records the whole numbers by which it moved each row, and the weight of each answered
push. Under float32 the final model must be W_0 plus the weighted sum of these, each once, to the
last bit; under int8, too, if each row has one magnitude. Where int8 loses something, this holds for
the sent part, and the rest waits on the worker and the server.

`WBSP_KILLS=25` kills one of them 25 times in each format, with 1, 2 and 4 shards, with a standby
and without; `WBSP_KILLS_SEED` chooses the processes and the moments.
"""

import itertools
import os
import random

import numpy as np
import pytest
from integer_replica import EXACT, UNIT, of_rows, pattern, read_result, recorded
from server_and_standby import OFTEN, ServerAndStandby, run_json

from wbsp.core.store import UNSENT
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.tensors.codecs import parse

KILLS = int(os.environ.get("WBSP_KILLS", "0"))
SEED = int(os.environ.get("WBSP_KILLS_SEED", "0"))
ROWS = 18_000  # floats: 400 rows of 45; the words of a shard of four are enough for blocks
LOSES = "int8", ROWS
NEAR = 2e-6  # of the largest sum: float32 rounds hundreds of sums
ALL = [(sync, *kind, shards, standby)
       for (kind, shards, standby), sync in zip(itertools.product(
           [("float32", ROWS), ("int8", EXACT), LOSES], (1, 2, 4), (True, False)),
           itertools.cycle(["bsp", "pcc", "asp", "wbsp", "pcc"]))]
SOME = [("bsp", "float32", ROWS, 1, True), ("pcc", "int8", EXACT, 2, False)]


@pytest.mark.timeout(240 + 60 * KILLS)
@pytest.mark.parametrize(("sync", "wire", "size", "shards", "standby"), ALL if KILLS else SOME)
def test_rows_are_conserved_when_any_process_dies(jobs, sync, wire, size, shards, standby):
    draw = random.Random(f"{wire} {size} {shards} {standby} {SEED}")
    pair = ServerAndStandby(jobs, sync, shards=shards, standby=standby,
                            flags=[OFTEN, f"--wire={wire}", "--outer=identity"])
    for worker, seconds in enumerate((0.004, 0.01)):
        pair.worker(1_000_000, seconds=seconds, stop_when_told=True, size=size, table=True,
                    share=not worker)
    pair.workers[0].until("step 5 done")
    pair.kill_repeatedly(KILLS or 2, draw)
    pair.go()
    for worker in pair.workers:
        worker.ends_well()
    if (wire, size) != LOSES:
        pair.ends(pair.serving)
    else:
        pair.serving.ends_well()
        what_was_sent_counts_once(pair)
    for worker in range(2):
        least = read_result(jobs.folder, worker)["least"]
        assert 0 < least < 2 * parse(wire).words(size), "updates of a few steps go as blocks"


def what_was_sent_counts_once(pair):
    """W + what the server has not sent = W_0 + the sum of weight * what workers sent, but for the
    rounding of float32; and that with what they have not sent is what they cut."""
    saved = checkpoint.load(run_json(pair.serving)["folder"] / "checkpoint.safetensors")
    size = saved.vector.size
    results = [read_result(pair.jobs.folder, worker) for worker in range(2)]
    initial = {tuple(set(result["first"])) for result in results}
    assert initial <= {(1.0,), (2.0,)} and len(initial) == 1
    total, most = np.full(size, *initial.pop()), 1.0
    for worker, result in enumerate(results):
        assert np.array(result["final"], np.float32).tobytes() == saved.vector.tobytes()
        cut = sum(recorded(pair.jobs.folder, worker))
        made = UNIT * of_rows(cut, size) * pattern(size)
        total += result["counted"]
        most = max(most, np.abs(made).max())
        left = made - result["sent"] - result["unsent"]
        assert np.abs(left).max() < NEAR * most
        assert saved.state.members[worker].steps == result["steps"]
    left = saved.vector + saved.outer.get(UNSENT, np.float32(0)) - total
    assert np.abs(left).max() < NEAR * most
