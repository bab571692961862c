"""Evaluations on a part of the test set: many short runs would else spend their time on them."""

from __future__ import annotations

import importlib
from os import PathLike

import numpy as np

from wbsp.simulate.training import Experiment, KerasWorkload


class SampledExperiment(Experiment):
    """As `Experiment`, evaluated on `images` images of the test set, always the same ones."""

    def __init__(self, images: int, model: str, dataset: str, batch_size: int,
                 lr: float | None = None, data_dir: str | PathLike | None = None):
        super().__init__(model, dataset, batch_size, lr, data_dir)
        x, y = importlib.import_module("data").load(dataset, data_dir, "test")
        if images > len(y):
            raise ValueError(f"--test_images={images}: the test set of {dataset} has {len(y)}")
        chosen = np.random.default_rng(0).permutation(len(y))[:images]
        pipeline = importlib.import_module("data.pipeline")
        self._part = pipeline.test(x[chosen], y[chosen], min(images, 1000)).cache()

    def evaluate(self, workload: KerasWorkload, vector: np.ndarray) -> dict[str, float]:
        """loss, accuracy and top5 (0..1) on those images."""
        return workload.evaluate(vector, self._part)
