"""What a process computes to compare versions: an adoption, a cut, a short training."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import wbsp
from scripts.gpu import device, networks
from wbsp.replica.model import open_replica

RATE = 0.01


def initial(network: str) -> np.ndarray:
    """W_0 of the network, as this process draws it."""
    return open_replica(networks.build(network)).read().copy()


def exact(network: str) -> dict[str, Any]:
    """For each act of a replica, how many values of the flat vector are not numpy's, to the last
    bit; and `host`: whether its vectors lie in the host's memory, as they do on a CPU."""
    model = networks.build(network)
    replica = open_replica(model)
    random = np.random.default_rng(0)
    first, second, third, fourth = random.standard_normal((4, replica.read().size), np.float32)

    def read() -> np.ndarray:
        replica.stepped()  # else it would not look at the variables
        return replica.read()

    def step(x: np.ndarray) -> None:
        _assign(model, x)
        replica.stepped()

    replica.adopt(replica.bring(first.copy()), "replace")
    replaced = _unequal(read(), first)
    step(second)
    update = replica.cut()
    cut = _unequal(np.asarray(update), second - first)
    step(third)
    replica.adopt(replica.bring(fourth.copy()), "rebase")
    return {"wrong": {"replace": replaced, "cut": cut,
                      "rebase": _unequal(read(), fourth + (third - second))},
            "host": "cpu" in str(getattr(replica.bring(first), "device", "cpu")).lower()}


def train(address: str, network: str, start: np.ndarray, steps: int,
          batch_size: int) -> np.ndarray:
    """Return the last version of a run whose only worker sends W_0 = start and makes `steps`."""
    device.full_precision(keras.backend.backend())
    model = networks.build(network)
    model.optimizer.learning_rate = RATE
    _assign(model, start)
    model.fit(networks.Batches(model, batch_size), epochs=1, steps_per_epoch=steps, verbose=0,
              shuffle=False, callbacks=[wbsp.SyncCallback(address, 0, say=networks.silent)])
    return open_replica(model).read().copy()


def _assign(model: keras.Model, x: np.ndarray) -> None:
    """Write the flat vector x to the variables, as a step would: past the replica."""
    weights = [*model.trainable_weights, *model.non_trainable_weights]
    chosen = [weight for weight in weights if "float" in weight.dtype]
    ends = np.cumsum([np.prod(weight.shape, dtype=int) for weight in chosen])
    for weight, part in zip(chosen, np.split(x, ends[:-1]), strict=True):
        weight.assign(part.reshape(weight.shape).copy())


def _unequal(a: np.ndarray, b: np.ndarray) -> int:
    return int(np.count_nonzero(a.view(np.uint32) != b.view(np.uint32)))
