"""Models with one float per example: a step adds 1 to the floats of its examples."""

import numpy as np


def dense(n, places, values):
    """Return an update, float64 [n], in which only these values are not 0."""
    update = np.zeros(n)
    update[places] = values
    return update


class OneAnExample:
    """The workload of such a model in virtual time."""

    sgd = False
    least = 1
    statistics = ()

    def __init__(self, n, batch, workers):
        self.n, self.batch = n, batch
        self.x = np.zeros((workers, n), np.float32)
        self.anchor = np.zeros((workers, n), np.float32)

    def initial(self):
        return np.zeros(self.n, np.float32)

    def step(self, worker, samples, start, part=1.0):
        self.x[worker, np.arange(start, start + samples) % self.n] += 1
        return samples, 0.0

    def cut(self, worker):
        update = self.x[worker] - self.anchor[worker]
        self.anchor[worker] = self.x[worker]
        return update

    def adopt(self, worker, vector, how):
        progress = self.x[worker] - self.anchor[worker]
        self.anchor[worker] = vector
        self.x[worker] = vector if how == "replace" else vector + progress
