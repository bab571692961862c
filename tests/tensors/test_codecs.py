"""Formats of vectors on the wire: what comes out of them, what is lost, and what is refused."""

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wbsp.tensors import blocks
from wbsp.tensors.codecs import BLOCK, FLOAT32, Ranges, parse
from wbsp.tensors.error_feedback import ErrorFeedback, advanced

LOSSY = ["bfloat16", "int8", "topk:0.01", "topk:0.25"]
SIZES = st.sampled_from([1, 2, 3, 5, 255, 256, 257, 1000, 40_000])
MOST = np.finfo(np.float32).max
EDGES = np.array([0, -0.0, 1e-45, -1e-40, 1e-38, MOST, -MOST, 1e-30, 1, -3], np.float32)


def drawn(seed, size, scale=1.0):
    """Values of very different magnitudes, some of them 0."""
    rng = np.random.default_rng(seed)
    vector = rng.standard_normal(size) * 10.0 ** rng.integers(-6, 3, size) * scale
    return np.where(rng.random(size) < 0.1, 0, vector).astype(np.float32)


def exactly(one, other):
    return one.astype(np.float64) + other.astype(np.float64)


@pytest.mark.parametrize("name", LOSSY)
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 999), size=SIZES, rounds=st.integers(1, 5))
def test_sent_and_unsent_parts_add_up_to_the_whole(name, seed, size, rounds):
    sender, received = ErrorFeedback(parse(name)), np.zeros(size)
    for n in range(rounds):
        vector, before = drawn([seed, n], size), sender.unsent
        whole = vector if before is None else vector + before
        words, sent = sender.send(vector.copy())
        assert words.size == sender.wire.words(size)
        assert sender.wire.decode(words, size).tobytes() == sent.tobytes()
        assert np.array_equal(exactly(sent, sender.unsent), whole), "exactly"
        received += sent
    total = sum(drawn([seed, n], size).astype(float) for n in range(rounds))
    assert np.allclose(received + sender.unsent, total, rtol=1e-5, atol=1e-3)


@given(seed=st.integers(0, 999), size=SIZES, scale=st.sampled_from([1e-36, 1e-20, 1.0, 1e30]))
def test_int8_is_off_by_half_a_scale_at_most(seed, size, scale):
    wire, vector = parse("int8"), drawn(seed, size, scale)
    sent = wire.decode(wire.encode(vector), size)
    for start in range(0, size, BLOCK):
        block = slice(start, start + BLOCK)
        half = max(np.abs(vector[block]).max() / 254, 1.5e-36)
        assert np.abs(vector[block] - sent[block]).max() <= half * (1 + 1e-5)


@given(seed=st.integers(0, 999), size=SIZES)
def test_bfloat16_rounds_to_the_nearest(seed, size):
    wire, vector = parse("bfloat16"), drawn(seed, size)
    sent = wire.decode(wire.encode(vector), size)
    assert not (sent.view(np.uint32) & 0xFFFF).any(), "the lower half is not sent"
    assert (np.abs(vector - sent) <= np.abs(vector) / 256).all()
    ties = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)
    even = wire.decode(wire.encode(ties), 2).view(np.uint32)
    assert even.tolist() == [0x3F800000, 0x3F820000]


@pytest.mark.parametrize("seed", range(5))
def test_topk_sends_the_largest_and_of_equals_the_first(seed):
    vector = np.random.default_rng(seed).integers(-9, 10, 1000).astype(np.float32)
    wire = parse("topk:0.02")
    sent = wire.decode(wire.encode(vector), 1000)
    order = sorted(range(1000), key=lambda i: (-abs(vector[i]), i))
    expected = np.zeros(1000, np.float32)
    expected[order[:20]] = vector[order[:20]]
    assert np.array_equal(sent, expected)


def test_topk_sends_all_of_a_difference_but_zeros_up_to_a_quarter():
    wire = parse("topk:0.01").versions
    few = np.zeros(1000, np.float32)
    few[[3, 999]] = 1, -2
    assert wire.encode(few).size == 1 + 2 * 2
    many = drawn(0, 1000)
    words = wire.encode(many)
    assert words.size == 1 + 2 * 250 and words.size < FLOAT32.words(1000)
    assert np.array_equal(wire.decode(wire.encode(few), 1000), few)


@pytest.mark.parametrize("name", LOSSY)
def test_zeros_denormals_and_huge_values_stay_finite(name):
    for vector in (EDGES, np.tile(EDGES, 77), np.zeros(600, np.float32),
                   np.full(600, MOST, np.float32), np.full(600, 1e-44, np.float32)):
        sender = ErrorFeedback(parse(name))
        _, sent = sender.send(vector.copy())
        assert np.isfinite(sent).all()
        assert np.array_equal(exactly(sent, sender.unsent), vector)


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_arrive_and_leave_no_residual(name, value):
    sender, bad = ErrorFeedback(parse(name)), drawn(1, 700)
    sender.send(drawn(0, 700))
    unsent = sender.unsent.copy()
    bad[600] = value
    assert not np.isfinite(sender.send(bad).vector).all()
    assert np.array_equal(sender.unsent, unsent)


@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_only_given_blocks_are_sent_and_their_error_waits_for_the_next_time(name):
    sender, total, sent = ErrorFeedback(parse(name)), 0.0, 0.0
    for seed, start in enumerate([0, 5000, 0, 16]):
        vector = np.zeros(10_000, np.float32)
        vector[start:start + 20] = drawn(seed, 20)
        before = sender.unsent
        of = sender.send(blocks.found(vector))
        total, sent = total + vector.astype(float), sent + of.vector.astype(float)
        block = slice(start // 16 * 16, start // 16 * 16 + 32)
        elsewhere = np.delete(np.arange(10_000), block)
        assert not of.vector[elsewhere].any()
        assert before is None or np.array_equal(sender.unsent[elsewhere], before[elsewhere])
        assert np.allclose(sent + sender.unsent, total, atol=1e-7)
    unsent = sender.unsent.copy()
    vector[16] = np.nan
    assert not np.isfinite(sender.send(blocks.found(vector)).vector).all()
    assert np.array_equal(sender.unsent, unsent)
    sender.send(drawn(5, 10_000))
    assert not np.array_equal(sender.unsent, unsent), "a whole vector takes all along"


@pytest.mark.parametrize("change", [
    lambda words: words[:-1], lambda words: np.append(words, words[:1]),
    lambda words: np.concatenate([words[:1], words[1:3][::-1], words[3:]])])
def test_words_of_blocks_that_no_encoder_makes_are_refused(change):
    words = blocks.encoded(parse("int8").encode(np.pad(drawn(0, 20), (0, 9980))))
    assert words.size < 100
    with pytest.raises(ValueError):
        advanced(parse("int8"), drawn(0, 10_000), change(words), in_blocks=True)
    with pytest.raises(ValueError, match="blocks of topk"):
        advanced(parse("topk:0.1"), drawn(0, 10_000), words, in_blocks=True)


def test_float32_is_the_vector_itself():
    vector = drawn(0, 10)
    words, sent = ErrorFeedback(FLOAT32).send(vector)
    assert words is vector and sent is vector


@pytest.mark.parametrize("name, share", [("bfloat16", 0.5), ("int8", 0.255), ("topk:0.01", 0.0201)])
def test_bytes_of_a_model_of_150_000_floats(name, share):
    wire, vector = parse(name), drawn(0, 150_000)
    assert wire.encode(vector).nbytes == 4 * wire.words(vector.size) <= share * vector.nbytes


# The same bytes on every machine: digests of the encodings of one vector.
DIGESTS = {"bfloat16": "95260d", "int8": "a412a3", "topk:0.01": "23114f"}


@pytest.mark.parametrize("name", DIGESTS)
def test_the_encoding_does_not_change(name):
    vector = (np.arange(-5000, 5000) % 977 * np.float32(0.37)).astype(np.float32) - 100
    words = parse(name).encode(vector)
    assert hashlib.sha256(words.tobytes()).hexdigest()[:6] == DIGESTS[name]


@pytest.mark.parametrize("name", LOSSY)
def test_one_difference_after_the_other_makes_the_last_version(name):
    wire = parse(name).versions
    vector, words = drawn(0, 1000), []
    first = vector
    for n in range(4):
        words.append(wire.encode(drawn(n + 1, 1000)))
        vector = vector + wire.decode(words[-1], 1000)
    assert advanced(wire, first, np.concatenate(words)).tobytes() == vector.tobytes()
    assert advanced(wire, first, words[0][:0]) is first


@pytest.mark.parametrize("name", [*LOSSY, "float32"])
def test_a_payload_of_another_length_is_refused(name):
    wire, words = parse(name), parse(name).encode(drawn(0, 600))
    for wrong in (words[:-1], words[:0], np.append(words, words[:1])):
        with pytest.raises(ValueError, match="words of"):
            wire.decode(wrong, 600)
    if name != "float32":
        with pytest.raises(ValueError):
            advanced(wire, drawn(0, 600), words[:-1])


@pytest.mark.parametrize("name", LOSSY)
def test_ranges_are_encoded_by_themselves(name):
    wire, vector, ends = parse(name), drawn(0, 1000), [0, 333, 333, 1000]
    ranges = Ranges(wire, ends)
    words = ranges.encode(vector)
    assert words.size == ranges.words(1000)
    alone = [wire.encode(vector[a:b]) for a, b in itertools.pairwise(ends)]
    assert [part.tobytes() for part in ranges.parts(words)] == [part.tobytes() for part in alone]
    sent = np.concatenate([wire.decode(part, b - a) for part, a, b in
                           zip(alone, ends, ends[1:], strict=False)])
    assert ranges.decode(words, 1000).tobytes() == sent.tobytes()
    for wrong in (words[:-1], words[1:]):
        with pytest.raises(ValueError):
            ranges.decode(wrong, 1000)


@pytest.mark.parametrize("name", LOSSY)
def test_differences_of_ranges_differ_in_length_and_follow_one_another(name):
    ends = [0, 333, 333, 1000]
    wire, start = Ranges(parse(name), ends).versions, drawn(0, 1000)
    changes = [drawn(1, 1000), np.where(np.arange(1000) < 400, drawn(2, 1000), 0).astype("f4")]
    words = [wire.encode(change) for change in changes]
    joined = advanced(wire, start, np.concatenate(words))
    for a, b in itertools.pairwise(ends):
        alone = parse(name).versions
        part = np.concatenate([alone.encode(change[a:b]) for change in changes])
        assert joined[a:b].tobytes() == advanced(alone, start[a:b], part).tobytes()
    assert wire.length(np.concatenate(words), 1000) == words[0].size


def sparse(indices, values):
    words = np.empty(1 + 2 * len(indices), np.float32)
    words[:1 + len(indices)].view("<u4")[:] = [len(indices), *indices]
    words[1 + len(indices):] = values
    return words


@pytest.mark.parametrize("indices", [[600], [2**32 - 1], [5, 5], [5, 4], range(599, 399, -1)])
def test_indices_that_no_encoder_makes_are_refused(indices):
    with pytest.raises(ValueError):
        parse("topk:0.25").decode(sparse(indices, 1.0), 600)
    assert parse("topk:0.25").decode(sparse([599], 1.0), 600)[599] == 1


def test_a_scale_below_zero_is_refused():
    words = parse("int8").encode(drawn(0, 600))
    words[1] = -1
    with pytest.raises(ValueError, match="below 0"):
        parse("int8").decode(words, 600)


@pytest.mark.parametrize("name", ["", "float16", "INT8", "topk", "topk:", "topk:0", "topk:0.3",
                                  "topk:nan", "topk:-1", "topk:0.1:2", "int8:0.1"])
def test_an_unknown_name_is_refused_with_the_known_names(name):
    with pytest.raises(ValueError, match="give float32, bfloat16, int8 or topk:0.01"):
        parse(name)


@pytest.mark.parametrize("name", [*LOSSY, "float32"])
def test_a_format_is_chosen_by_its_name(name):
    assert parse(name).name == name and parse(parse(name).name).words(999) == parse(name).words(999)
