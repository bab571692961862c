"""Pictures of ten classes for the examples: CIFAR-10, or drawn ones that need no file."""

from pathlib import Path

import numpy as np


def pictures(folder=None):
    """((x, y), (x, y)) to train and to test; x: float32 [count, 32, 32, 3], y: int64 [count].

    folder: of CIFAR-10's "binary version" (data_batch_1.bin ... test_batch.bin); None: draw some
    """
    if folder:
        train = sorted(Path(folder).glob("data_batch_*.bin"))
        if not train:
            raise SystemExit(f"{folder} holds no data_batch_1.bin: unpack cifar-10-binary.tar.gz")
        return _read(*train), _read(Path(folder) / "test_batch.bin")
    return _drawn(4000, seed=1), _drawn(1000, seed=2)


def _read(*paths):
    rows = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073) for path in paths])
    x = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(x, np.float32) / 127.5 - 1, rows[:, 0].astype(np.int64)


def _drawn(count, seed):
    """Return a wave of its class's direction and colour, at any place, under noise."""
    draw = np.random.default_rng(seed)
    y = draw.integers(10, size=count)
    angle, tone = np.pi * (y % 5) / 5, y // 5
    rows, columns = np.mgrid[:32, :32] / 5
    phase = draw.uniform(0, 6.3, count)
    wave = np.sin(np.multiply.outer(np.cos(angle), columns) + np.multiply.outer(
        np.sin(angle), rows) + phase[:, None, None])
    x = wave[..., None] * np.where(np.arange(3) == tone[:, None, None, None], 1.0, 0.5)
    return (x + draw.normal(size=x.shape)).astype(np.float32), y
