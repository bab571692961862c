"""The versioned store and the ledger: conservation, immutability, exactly once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbsp.core.ledger import Ledger
from wbsp.core.outer_optimizer import create_outer
from wbsp.core.store import UNSENT, Snapshot, Store
from wbsp.tensors import blocks
from wbsp.tensors.codecs import FLOAT32, parse
from wbsp.tensors.error_feedback import advanced
from wbsp.tensors.ops import is_finite

SIZE = (1 << 16) * 2 + 5  # more than two blocks of the pending sum


def f32(*values):
    return np.array(values, np.float32)


@given(st.lists(st.lists(st.tuples(st.floats(0, 1, width=32), st.integers(0, 99)), max_size=4),
                max_size=4))
def test_a_version_is_the_initial_model_plus_all_that_was_accepted(rounds):
    store, exact = Store(f32(1, 2, 3)), np.array([1.0, 2.0, 3.0])
    for version, updates in enumerate(rounds, 1):
        for weight, seed in updates:
            update = np.random.default_rng(seed).standard_normal(3).astype(np.float32)
            exact = exact + weight * update.astype(float)
            store.accept(update, weight)
        assert store.accepted == len(updates)
        snapshot = store.commit()
        assert snapshot.version == version and store.accepted == 0
        assert np.allclose(snapshot.vector, exact, rtol=0, atol=1e-5)


def test_long_vectors_are_summed_block_by_block():
    rng = np.random.default_rng(0)
    initial, *updates = rng.standard_normal((4, SIZE)).astype(np.float32)
    store = Store(initial)
    for update in updates:
        store.accept(update.copy(), 0.25)
    expected = initial + sum(0.25 * u.astype(float) for u in updates)
    assert np.allclose(store.commit().vector, expected, rtol=0, atol=1e-5)


def test_snapshots_never_change():
    initial = f32(1, 2)
    store = Store(initial)
    before = store.latest
    store.accept(f32(10, 20), 1.0)
    after = store.commit()
    initial[:] = 99
    store.accept(f32(5, 5), 1.0)
    store.commit()
    assert before.vector.tolist() == [1, 2] and after.vector.tolist() == [11, 22]
    for snapshot in (before, after, store.latest):
        with pytest.raises(ValueError, match="read-only"):
            snapshot.vector[0] = 0


def test_an_update_is_not_copied_unless_it_may_not_be_written():
    store, update, fixed = Store(np.ones(SIZE, np.float32)), *np.ones((2, SIZE), np.float32)
    fixed.flags.writeable = False
    store.accept(update, 0.5)
    store.accept(fixed, 0.5)
    assert np.shares_memory(store.commit().vector, update)
    assert (store.latest.vector == 2).all() and (fixed == 1).all()
    store.accept(fixed, 0.5)
    store.commit()
    assert (fixed == 1).all()


def test_a_commit_of_nothing_is_a_version_with_the_same_values():
    store = Store(f32(1, 2), version=7)
    assert store.commit().version == 8
    assert store.latest.vector.tolist() == [1, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1])
def test_one_value_that_is_not_finite_is_found(bad, place):
    update = np.full(SIZE, 3e38, np.float32)  # its squares are too large to hold
    assert is_finite(update)
    update[place] = bad
    assert not is_finite(update)


def test_a_model_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="NaN or infinite"):
        Store(f32(1, np.nan))


@pytest.mark.parametrize("update", [f32(1), np.ones(2), f32(1, 1).reshape(1, 2)])
def test_an_update_of_another_shape_or_type_is_refused(update):
    store = Store(f32(1, 2))
    with pytest.raises(ValueError, match=r"the model float32\[2\]"):
        store.check(update)
    assert store.accepted == 0


# Versions in a format that loses something.

LOSSY = ["bfloat16", "int8", "topk:0.02"]


def committed(store, seed, pushes=2, **commit):
    """Commit `pushes` random updates; return the sum of the accepted ones, float64."""
    rng, total = np.random.default_rng(seed), 0.0
    for _ in range(pushes):
        update = rng.standard_normal(store.size).astype(np.float32)
        total = total + 0.5 * update.astype(float)
        store.accept(update, 0.5)
    store.commit(**commit)
    return total


@pytest.mark.parametrize("outer", ["identity", "nesterov"])
@pytest.mark.parametrize("name", LOSSY)
def test_a_version_is_its_sent_form_and_the_rest_stays_pending(name, outer):
    initial = np.random.default_rng(0).standard_normal(700).astype(np.float32)
    store, exact = (Store(initial, outer=create_outer(outer), wire=wire)
                    for wire in (parse(name), FLOAT32))
    held, total = initial, 0.0
    for version in range(1, 9):
        accepted = committed(store, version)
        assert np.array_equal(accepted, committed(exact, version))
        words, base, _ = store.latest.sendable(version - 1)
        assert base == version - 1
        held = advanced(parse(name).versions, held, words)
        assert held.tobytes() == store.latest.vector.tobytes()
        total = total + accepted
    unsent = store.state()[UNSENT]
    assert np.allclose(store.latest.vector + unsent, exact.latest.vector, atol=1e-5)
    assert np.abs(unsent).max() > 0
    if outer == "identity":
        assert np.allclose(store.latest.vector + unsent, initial + total, atol=1e-5)
    with pytest.raises(ValueError, match="read-only"):
        store.latest.vector[0] = 0


@pytest.mark.parametrize("name, most", [("bfloat16", 1), ("int8", 3), ("topk:0.02", 12)])
def test_a_worker_that_is_some_versions_behind_gets_as_many_differences_as_are_shorter(name, most):
    store = Store(np.zeros(2560, np.float32), wire=parse(name))
    vectors = [store.latest.vector]
    for version in range(1, 20):
        update = np.zeros(2560, np.float32)
        update[version::25] = version
        store.accept(update, 1.0)
        vectors.append(store.commit().vector)
    for behind in range(20):
        words, base, _ = store.latest.sendable(19 - behind)
        assert (base == -1) == (behind > most)
        if base != -1:
            got = advanced(parse(name).versions, vectors[19 - behind], words)
            assert got.tobytes() == vectors[19].tobytes()
            assert words.size < 2560
        else:
            assert words is vectors[19]


def test_a_difference_leads_over_a_gap_in_the_numbers_and_over_an_empty_commit():
    store = Store(np.zeros(512, np.float32), 4, wire=parse("int8"))
    committed(store, 0, version=9)
    before = store.latest
    store.commit()
    assert store.latest.version == 10 and store.latest.vector is before.vector
    words, base, _ = store.latest.sendable(4)
    assert base == 4 and words.tobytes() == before.sendable(4).words.tobytes()
    for strange in (5, 8, 11, 3):
        assert store.latest.sendable(strange)[1] == -1
    words, base, _ = store.latest.sendable(10)
    assert (words.size, base) == (0, 10)


@pytest.mark.parametrize("name", LOSSY)
def test_another_store_resumes_from_what_is_pending(name):
    one = Store(np.zeros(700, np.float32), wire=parse(name))
    committed(one, 0)
    whole = one.whole().result()
    again = Store(whole.snapshot.vector, 1, wire=parse(name), unsent=whole.outer[UNSENT])
    unsent = whole.outer[UNSENT].copy()
    for store in (one, again):
        committed(store, 1)
    assert one.latest.vector.tobytes() == again.latest.vector.tobytes()
    assert np.array_equal(whole.outer[UNSENT], unsent), "what was handed out is not written to"


def test_without_tensors_differences_have_the_length_that_they_would_have():
    for name, most in [("bfloat16", 1), ("int8", 3), ("topk:0.02", 24)]:
        store = Store(None, wire=parse(name))
        for _ in range(30):
            store.accept(None, 1.0)
            store.commit()
        assert len(store.latest.differences) == most


def test_without_tensors_it_counts_versions():
    store = Store(None)
    store.accept(None, 0.5)
    store.accept(None, 0.5)
    assert (store.accepted, store.size) == (2, 0)
    assert store.commit() == (1, None, ())


def test_the_ledger_knows_handled_and_missing_pushes():
    ledger = Ledger({1: 4})
    assert not ledger.seen(0, 0)
    ledger.record(0, 0, "answer")
    assert ledger.seen(0, 0) and not ledger.seen(0, 1)
    assert ledger.answer(0) == "answer" and ledger.answer(1) is None
    assert ledger.seen(1, 3) and not ledger.seen(1, 4)
    assert ledger.state() == {0: 1, 1: 4}
    with pytest.raises(ValueError, match="worker 0 pushed seq 3, but seq 1 was never received"):
        ledger.seen(0, 3)


FLOATS, MANY = 4000, 40_000


def at(*starts, size=FLOATS):
    """An update of blocks that begin there, and the same as a vector."""
    vector = np.zeros(size, np.float32)
    for start in starts:
        vector[start:start + 8] = np.arange(1, 9)
    return blocks.read(blocks.encoded(vector), size), vector


def held(snapshot, before):
    """What a worker that has the version `before` makes of what it is sent."""
    words, base, _ = snapshot.sendable(before.version)
    if base < 0:
        return words, words.size
    vector = before.vector.copy()
    blocks.read(words, FLOATS).put_into(vector)
    return vector, words.size


@pytest.mark.parametrize("dense", [None, 0, 1, 2], ids=["", "first", "second", "third"])
def test_updates_of_blocks_make_the_version_that_vectors_make(dense):
    initial = np.full(FLOATS, -0.0, np.float32)
    mixed, plain = Store(initial), Store(initial)
    for number, (starts, weight) in enumerate([((0, 160), 1.0), ((160, 3992), 0.5), ((64,), 2.0)]):
        some, vector = at(*starts)
        mixed.accept(vector.copy() if number == dense else some, weight)
        plain.accept(vector, weight)
    assert np.array_equal(mixed.commit().vector, plain.commit().vector)
    before = Snapshot(0, initial)
    made, words = held(mixed.latest, before)
    assert made.tobytes() == mixed.latest.vector.tobytes(), "what did not change is -0.0 still"
    assert words == (1 + 4 * 17 if dense is None else FLOATS)


def test_a_worker_that_is_some_versions_behind_gets_the_blocks_of_all_of_them():
    store = Store(np.zeros(FLOATS, np.float32))
    versions = [store.latest]
    for starts in [(0,), (0, 320), (), (3200,)]:
        if starts:
            store.accept(at(*starts)[0], 1.0)
        versions.append(store.commit(7 if starts == (3200,) else None))
    for before, count in zip(versions, [3, 3, 1, 1, 0], strict=True):
        made, words = held(store.latest, before)
        assert made.tobytes() == store.latest.vector.tobytes()
        assert words == (1 + 17 * count if count else 0)
    assert held(store.latest, Snapshot(3, versions[0].vector + 1))[1] == 1 + 17
    assert held(store.latest, Snapshot(6, versions[0].vector))[1] == FLOATS, "of no version"
    store.accept(np.ones(FLOATS, np.float32), 1.0)
    assert held(store.commit(), versions[-1])[1] == FLOATS


def test_versions_of_many_blocks_go_whole():
    store = Store(np.zeros(FLOATS, np.float32))
    before = store.latest
    for part in range(10):
        store.accept(at(*range(400 * part, 400 * part + 200, 16))[0], 1.0)
        store.commit()
    assert held(store.latest, before)[1] == FLOATS


OUTER = ["identity", "nesterov", "qhm", "delayed-nesterov"]
PUSHED = [[(0, 160)], [(160, 3992), (0,)], [], [(64,)], [(39_990,)], [(8000,)]]  # for each version


def initial():
    vector = np.random.default_rng(0).normal(size=MANY).astype(np.float32)
    vector[20_000] = -0.0  # which is 0 when 0 is added
    return vector


@pytest.mark.parametrize("outer", OUTER)
def test_statistics_change_by_the_mean_of_the_workers_and_all_else_by_the_outer_step(outer):
    variance, size = slice(700, 800), 1000
    first = np.ones(size, np.float32)
    store = Store(first, outer=create_outer(outer), statistics=[variance])
    plain, stepped = Store(first), Store(first, outer=create_outer(outer))
    for seed in range(30):
        # A layer's variance on its way from 1 to 0.01, and the mean of two workers.
        update = np.random.default_rng(seed).normal(size=(2, size)).astype(np.float32)
        update[:, variance] = 0.3 * (0.01 - store.latest.vector[variance])
        for one in (store, plain, stepped):
            for worker in range(2):
                one.accept(update[worker].copy(), 0.5)
            one.commit()
        assert (store.latest.vector[variance] > 0).all()
    vector, rest = store.latest.vector, np.ones(size, bool)
    rest[variance] = False
    assert np.array_equal(vector[variance], plain.latest.vector[variance])
    assert np.array_equal(vector[rest], stepped.latest.vector[rest])
    assert not any(values[variance].any() for values in store.state().values()
                   if values.size == size), "they have no momentum"


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
def test_untouched_values_neither_move_nor_travel_and_the_rest_is_conserved(name, outer):
    wire = parse(name)
    store = Store(initial(), wire=wire, outer=create_outer(outer))
    exact = Store(initial(), outer=create_outer(outer))
    versions, touched = [store.latest], np.zeros(MANY, bool)
    for pushes in PUSHED:
        for starts in pushes:
            some, vector = at(*starts, size=MANY)
            touched |= vector != 0
            store.accept(some, 0.5)
            exact.accept(vector, 0.5)
        exact.commit()
        versions.append(store.commit())
        unsent = store.state().get(UNSENT, np.zeros(MANY, np.float32))
        assert np.allclose(store.latest.vector + unsent, exact.latest.vector, atol=1e-5)
        assert not unsent[~touched].any()
        assert np.array_equal(store.latest.vector[~touched], initial()[~touched])
        for before in versions[-4:] if pushes else ():
            words, base, in_blocks = store.latest.sendable(before.version)
            if wire.lossless and base < 0:
                assert outer != "identity", "nothing was pushed: the next version goes whole"
                continue
            assert base == before.version and words.size < 1500
            if wire.lossless:
                got = before.vector.copy()
                blocks.read(words, MANY).put_into(got)
            else:
                assert in_blocks == (words.size > 0)
                got = advanced(wire.versions, before.vector, words, in_blocks)
            assert got.tobytes() == store.latest.vector.tobytes()


def test_momentum_moves_a_block_until_that_changes_no_bit_of_it():
    store = Store(np.ones(MANY, np.float32), wire=parse("int8"), outer=create_outer(
        "nesterov", rate=1.0, momentum=0.5))
    store.accept(at(0, size=MANY)[0], 1.0)
    sizes = []
    for _ in range(40):
        version = store.commit().version
        sizes.append(store.latest.sendable(version - 1).words.size)
        store.accept(at(8000, size=MANY)[0], 1.0)
    assert sizes[0] == 1 + 2 * 17 and sizes[5] == 1 + 4 * 17 and sizes[-1] == 1 + 2 * 17


@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_blocks_and_whole_differences_follow_one_another(name):
    wire = parse(name)
    store = Store(initial(), wire=wire)
    store.accept(at(0, size=MANY)[0], 1.0)
    versions = [store.latest, store.commit()]
    store.accept(initial(), 1.0)
    versions.append(store.commit())
    store.accept(at(64, size=MANY)[0], 1.0)
    newest = store.commit()
    for before, most in zip(versions, [1.07, 1.07, 0.01], strict=True):
        words, base, in_blocks = newest.sendable(before.version)
        assert in_blocks and base == before.version
        assert words.size < most * wire.words(MANY) + 100
        got = advanced(wire.versions, before.vector, words, in_blocks)
        assert got.tobytes() == newest.vector.tobytes()
    words, base, in_blocks = versions[2].sendable(1)
    assert words.size == wire.words(MANY) and not in_blocks, "as it is"


def test_blocks_of_another_model_are_refused():
    store = Store(np.zeros(FLOATS + 1, np.float32))
    with pytest.raises(ValueError, match="update has 4000 floats, the model 4001"):
        store.check(at(0)[0])
    Store(np.zeros(FLOATS, np.float32)).check(at(0)[0])
