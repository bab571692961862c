"""Steps that touch a few rows of a table: what travels is what they touch. Real servers, workers as
threads of the test that train arrays of JAX."""

import time

import numpy as np
import pytest
from jobs import both

import wbsp
from wbsp.core.store import UNSENT
from wbsp.ps.checkpoint import format as checkpoint

jnp = pytest.importorskip("jax.numpy")
pytestmark = pytest.mark.usefixtures("process_ends")

ROWS, WIDTH, TOUCHED, STEPS = 5000, 64, 20, 6
TABLE = ROWS * WIDTH * 4  # bytes


def rows(index, step):
    """The rows that a worker's step touches, in the order of the table."""
    return np.sort(np.random.default_rng([index, step]).permutation(ROWS)[:TOUCHED])


def train(server, index, transport, dense_at=None, pause=0.0):
    """Raise the values of some rows by 2 in each step, and of all in one; the final tree, and the
    bytes of the newest update and version."""
    tree = {"a": jnp.zeros(3), "table": jnp.zeros((ROWS, WIDTH))}
    with wbsp.Worker(tree, address=server.address, worker_index=index, transport=transport,
                     say=lambda text: None) as w:
        tree = w.values
        for step in range(STEPS):
            touched = slice(None) if step == dense_at else rows(index, step)
            tree = {"a": tree["a"] + 2, "table": tree["table"].at[touched].add(2)}
            time.sleep(pause)  # under `auto` no worker waits for a push in transit
            tree = w.step(0.5, tree)
    member = w._member
    return w.values, member.transport.update_bytes(0), member.begun().report().pull_bytes


@pytest.mark.parametrize("transport, flags", [("tcp", []), ("tcp", ["--shards=3"]), ("auto", [])],
                         ids=["sockets", "shards", "memory"])
@pytest.mark.parametrize("dense_at", [None, 2], ids=["", "one step touches all"])
def test_only_touched_rows_travel_and_all_have_one_version(jobs, transport, flags, dense_at):
    server = jobs.server(*flags, sync="bsp").listens()
    found = both((train, server, 0, transport, dense_at), (train, server, 1, transport))
    server.ends_well()
    expected = np.zeros((ROWS, WIDTH), np.float32)
    for index in range(2):
        for step in range(STEPS):  # the mean of the two
            expected[slice(None) if (index, step) == (0, dense_at) else rows(index, step)] += 1
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    assert saved.vector[:3].tolist() == [2 * STEPS] * 3
    assert np.array_equal(saved.vector[3:].reshape(ROWS, WIDTH), expected)
    touched = TOUCHED * WIDTH * 4
    for tree, pushed, pulled in found:
        assert np.array_equal(tree["table"], expected) and tree["a"].tolist() == [2 * STEPS] * 3
        assert touched < pushed < 1.5 * touched
        assert (pulled == TABLE + 12) if transport == "auto" else (pulled < 3 * touched)
    assert (np.asarray(found[0][0]["table"]).tobytes()
            == np.asarray(found[1][0]["table"]).tobytes())


@pytest.mark.parametrize("flags, sync", [
    (["--wire=int8"], "bsp"), (["--wire=bfloat16", "--shards=2"], "bsp"),
    (["--outer=nesterov"], "bsp"), ([], "auto")], ids=["int8", "shards", "nesterov", "auto"])
def test_sparse_runs_keep_their_sum_in_other_formats_and_with_momentum(jobs, flags, sync):
    server = jobs.server(*flags, sync=sync).listens()
    found = both(*((train, server, index, "tcp", None, 0.02) for index in range(2)))
    server.ends_well()
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    final, unsent = (vector[3:].reshape(ROWS, WIDTH) for vector in (
        saved.vector, saved.outer.get(UNSENT, np.zeros_like(saved.vector))))
    sums = np.zeros((ROWS, WIDTH), np.float32)
    for index in range(2):
        for step in range(STEPS):
            sums[rows(index, step)] += 1
    assert not final[sums == 0].any() and not unsent[sums == 0].any()
    if not {"--outer=nesterov", "auto"} & {*flags, sync}:
        assert np.allclose(final + unsent, sums, atol=0.03), "but for what workers have not sent"
    for tree, pushed, pulled in found:
        assert np.asarray(tree["table"]).tobytes() == final.tobytes()
        assert 0 < pushed < 0.05 * TABLE and 0 < pulled < 0.1 * TABLE
