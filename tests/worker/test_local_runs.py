"""Variables that each worker keeps for itself: real servers, workers as threads of the test that
train arrays of JAX."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from jobs import both

import wbsp
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.wire.errors import TransportError

jnp = pytest.importorskip("jax.numpy")
pytestmark = pytest.mark.usefixtures("process_ends")


def train(server, index, steps=4, **given):
    """Raise each value by 1 in each step; the final tree and what was said. `mine` begins at the
    worker's number, and is of a shape of its own."""
    said = []
    tree = {"mine": {"k": jnp.full(index + 2, index, "float32"), "b": jnp.zeros(1)},
            "head": jnp.full(5, index, "float32")}
    given = {"local": ["mine"], "say": said.append, **given}
    with wbsp.Worker(tree, address=server.address, worker_index=index, **given) as w:
        tree = w.values
        for _ in range(steps):
            tree = w.step(0.5, {"mine": {key: one + 1 for key, one in tree["mine"].items()},
                                "head": tree["head"] + 1})
    return w.values, said


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_each_worker_ends_with_its_local_values_and_the_run_stores_none(jobs, transport):
    flags = ["--shards=2"] if transport == "tcp" else []
    server = jobs.server(*flags, sync="pcc").listens()
    (one, told), (two, more) = both((train, server, 0, {"transport": transport}),
                                    (train, server, 1, {"transport": transport}))
    server.ends_well()
    assert not told and not more
    assert np.array_equal(one["head"], two["head"])
    assert one["mine"]["k"].tolist() == [4, 4] and two["mine"]["k"].tolist() == [5, 5, 5]
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    assert [spec.name for spec in saved.layout] == ["head"] and not saved.frozen.layout
    assert np.array_equal(saved.vector, one["head"])
    assert sorted(saved.state.local) == ["mine/b", "mine/k"]


def test_a_restarted_worker_begins_its_local_variables_anew_with_a_line(jobs):
    server = jobs.server(sync="asp", workers=1).listens()
    train(server, 0)
    server.ends_well()
    again = jobs.server("--resume=run-001", sync="asp", workers=1).listens()
    (tree, (line,)) = train(again, 0)
    again.ends_well()
    assert tree["head"].tolist() == [8] * 5 and tree["mine"]["k"].tolist() == [4, 4]
    assert line == ("worker 0: mine/b and 1 more are local, and what this worker's earlier process "
                    "has learned there is lost; continuing from the values that they have "
                    "here")
    saved = checkpoint.load(again.folder / "checkpoint.safetensors")
    assert sorted(saved.state.local) == ["mine/b", "mine/k"]


@pytest.mark.parametrize("given, said", [
    ({"local": []}, "mine/b is trained here and local there"),
    ({"local": ["mine/b"]}, "mine/k is trained here and local there"),
    ({"local": ["mine/b"], "frozen": ["mine/k"]}, "mine/k is frozen here and local there")])
def test_workers_that_keep_others_are_refused_in_one_line(jobs, given, said):
    server = jobs.server(sync="asp").listens()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(train, server, 0)
        server.until("joined")
        with pytest.raises(TransportError, match=said) as no:
            train(server, 1, **given)
        assert "\n" not in str(no.value)
        train(server, 1)
        first.result(60)
    server.ends_well()
