"""Blocks of vectors: what is sent of one where most of it is zero, to the last bit."""

import numpy as np
import pytest

from wbsp.tensors import blocks
from wbsp.tensors.blocks import BLOCK, Blocks, encoded

SIZES = 5000, 5008, 1 << 14


def sparse(size, seed=0, count=20):
    """A vector with so many blocks that are not zero, the last one among them."""
    draw = np.random.default_rng(seed)
    vector = np.zeros(size, np.float32)
    for start in [*(draw.integers(0, size // BLOCK, count - 1) * BLOCK), size - 3]:
        vector[start:start + 5] = draw.normal(size=vector[start:start + 5].size)
    return vector


@pytest.mark.parametrize("size", SIZES)
def test_blocks_restore_every_bit_from_the_nonzero_values(size):
    vector = sparse(size)
    vector[32], vector[100], vector[200] = -0.0, np.nan, np.inf
    words = encoded(vector)
    assert words.dtype == np.float32 and words.size <= 1 + 17 * 23
    found = blocks.read(words, size)
    assert found.whole().tobytes() == vector.tobytes()
    assert found.words.tobytes() == words.tobytes()


def test_dense_or_small_vectors_are_sent_whole():
    draw = np.random.default_rng(0)
    for vector in (np.ones(1 << 14, np.float32), sparse(1000, count=2),
                   (draw.random(1 << 14) < 0.1).astype(np.float32)):
        assert encoded(vector) is vector
    assert encoded(np.zeros(1 << 14, np.float32)).size == 1


@pytest.mark.parametrize("size", SIZES)
def test_sums_and_versions_of_blocks_are_those_of_vectors(size):
    one, two = sparse(size, 1), sparse(size, 2)
    first, second = (blocks.read(encoded(vector), size) for vector in (one, two))
    assert np.array_equal(first.plus(second).whole(), one + two)
    total = np.full(size, 2, np.float32)
    first.add_to(total)
    assert np.array_equal(total, one + 2)
    where = blocks.union([first.where, second.where])
    newest = total + two
    blocks.of(newest, where).put_into(total)
    assert np.array_equal(total, newest)


@pytest.mark.parametrize("change", [
    lambda words: words[:-1], lambda words: np.append(words, words[:1]),
    lambda words: np.concatenate([words[:1], words[2:3], words[1:2], words[3:]]),
    lambda words: np.concatenate([words[:1], words[2:3], words[2:]]),
    lambda words: np.full(words.size, -1, np.float32)])
def test_words_that_no_peer_makes_are_refused(change):
    words = encoded(sparse(5000))
    with pytest.raises(ValueError, match="blocks"):
        blocks.read(change(words), 5000)
    with pytest.raises(ValueError, match="beyond 4000 floats"):
        blocks.read(words, 4000)


def test_an_empty_payload_has_no_blocks():
    assert not blocks.read(np.empty(0, np.float32), 5000).where.size
    assert isinstance(blocks.read(np.zeros(1, np.float32), 5000), Blocks)
