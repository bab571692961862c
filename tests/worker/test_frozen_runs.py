"""What no step changes travels once, and is the same on all workers all the same: real servers,
workers as threads of the test that train arrays of JAX."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from jobs import both

import wbsp
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.wire.errors import TransportError

jnp = pytest.importorskip("jax.numpy")
pytestmark = pytest.mark.usefixtures("process_ends")

STILL = 300_000  # floats: more than a chunk of a message


def params(seed):
    return {"back": {"k": jnp.asarray(np.random.default_rng(seed).normal(size=STILL), "float32"),
                     "b": jnp.zeros(3)}, "head": jnp.zeros(5)}


def train(server, index, seed, steps=4, change=lambda tree: tree, until=None, **given):
    """Raise each value of the head by 1 in each step; the final tree, what was said, and the bytes
    of a push. `until`: it is to stop."""
    said = []
    given = {"frozen": ["back"], "say": said.append, **given}
    with wbsp.Worker(params(seed), address=server.address, worker_index=index, **given) as w:
        tree = w.values
        for _ in iter(until, True) if until else range(steps):
            tree = change({**tree, "head": tree["head"] + 1})
            tree = w.step(0.5, tree)
        report = w._member.begun().report()
    return w.values, said, report.push_bytes


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_frozen_values_travel_once_and_come_from_the_first_worker(jobs, transport):
    flags = ["--shards=2"] if transport == "tcp" else []
    server = jobs.server(*flags, sync="bsp").listens()
    found = both((train, server, 0, 1, {"transport": transport}),
                 (train, server, 1, 2, {"transport": transport}))
    server.ends_well()
    (one, _, pushed), (two, _, _) = found
    assert np.array_equal(one["head"], [4] * 5) and np.array_equal(one["head"], two["head"])
    assert np.array_equal(one["back"]["k"], two["back"]["k"])
    first = [seed for seed in (1, 2) if np.array_equal(one["back"]["k"], params(seed)["back"]["k"])]
    (line,) = [text for _, said, _ in found for text in said if "other values" in text]
    assert line == (f"worker {2 - first[0]}: back/k has other values here than in the run, and no "
                    "step changes them: the run's are taken over")
    assert pushed == 4 * 5
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    assert saved.vector.tolist() == [4] * 5
    assert [spec.name for spec in saved.frozen.layout] == ["back/b", "back/k"]
    assert np.array_equal(saved.frozen.vector[3:], one["back"]["k"])


def test_a_resumed_run_sends_its_frozen_values_to_new_workers(jobs):
    server = jobs.server(workers=1, sync="bsp").listens()
    before, _, _ = train(server, 0, 1)
    server.ends_well()
    again = jobs.server("--resume=run-001", workers=1, sync="bsp").listens()
    after, said, _ = train(again, 0, 2)
    again.ends_well()
    assert np.array_equal(after["back"]["k"], before["back"]["k"])
    assert sum("other values" in line for line in said) == 1
    assert np.array_equal(after["head"], [8] * 5)


def test_a_standby_that_takes_over_has_it(jobs):
    often = "--check_period=0.1"
    server = jobs.server(often, sync="asp").listens()
    standby = jobs.server(often, f"--standby_of={server.address}", sync="asp").listens()
    both_at = SimpleNamespace(address=f"{server.address},{standby.address}")
    over = threading.Event()

    def slowly(tree):
        time.sleep(0.01)
        return tree

    with ThreadPoolExecutor(2) as threads:
        trained = [threads.submit(train, both_at, index, 1, change=slowly, until=over.is_set)
                   for index in range(2)]
        standby.until("holding version")
        server.kill()
        standby.until("taking over")
        over.set()
        (one, _, _), (two, said, _) = [job.result(60) for job in trained]
    standby.ends_well()
    saved = checkpoint.load(standby.folder / "checkpoint.safetensors")
    assert np.array_equal(saved.frozen.vector[3:], params(1)["back"]["k"])
    assert one["head"].tolist() == two["head"].tolist() == saved.vector.tolist()
    assert not [line for line in said if "other values" in line]


def test_workers_that_freeze_others_are_refused_in_one_line(jobs):
    server = jobs.server(sync="asp").listens()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(train, server, 0, 1)
        server.until("joined")
        with pytest.raises(TransportError, match="back/k is trained here and frozen there") as no:
            train(server, 1, 1, frozen=["back/b"])
        assert "\n" not in str(no.value)
        train(server, 1, 1)
        first.result(60)
    server.ends_well()


def test_a_step_that_changes_a_frozen_variable_is_an_error(jobs):
    def change(tree):
        return {**tree, "back": {**tree["back"], "b": tree["back"]["b"] + 1}}

    server = jobs.server(workers=1, sync="asp").listens()
    with pytest.raises(ValueError, match="first step has changed back/b, which is frozen"):
        train(server, 0, 1, change=change)
    server = jobs.server(workers=1, sync="asp").listens()
    final, said, _ = train(server, 0, 1, change=change, frozen=[])
    assert np.array_equal(final["back"]["b"], [4] * 3) and not said
    server.ends_well()


@pytest.mark.parametrize("names, said", [
    (["backs"], r"frozen=\['backs'\]: no variable has this name or .*; there are back/b"),
    ("back", "give a list"), (["back", "head"], "that are neither frozen nor local: there")])
def test_names_that_cannot_be_are_refused_in_one_line(names, said):
    with pytest.raises(ValueError, match=said):
        wbsp.Worker(params(1), address="localhost:1", worker_index=0, frozen=names)
