"""A worker process that trains shapes10 in one run after another, so that TensorFlow starts once.

Each line of the standard input is the JSON of a `Plan`; each is answered with one of a result.
With `--plan JSON` there is one run.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import time
from dataclasses import dataclass

import keras

import data
import models
import wbsp
from models import training


@dataclass
class Plan:
    """One run of this worker."""

    address: str
    worker: int
    steps: int  # mini-batches after which this worker leaves, if the run has not ended
    pause: float  # seconds before each mini-batch
    batch: int = 128
    rate: float = 0.1  # of learning, at the beginning


class Pause(keras.callbacks.Callback):
    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(self.seconds)


@functools.cache
def built(parts: int, steps: int, rate: float) -> tuple[keras.Model, list, list]:
    """The network, and the values that its variables and its optimizer's have at first."""
    network = training.compile(models.build("small", 0), "small", micro_batches=parts,
                               jit_compile=False)
    # A rate that falls to nothing: the last version is then a matter of the training, not of whose
    # push happened to come last.
    network.optimizer.learning_rate = keras.optimizers.schedules.PolynomialDecay(
        rate, steps, end_learning_rate=0.0, power=0.5)
    network.optimizer.build(network.trainable_variables)
    return network, network.get_weights(), [v.numpy() for v in network.optimizer.variables]


def network_for(plan: Plan, parts: int) -> keras.Model:
    """The network as it is at first; traced once for all runs that are alike to it."""
    network, weights, states = built(parts, plan.steps * parts, plan.rate)
    network.set_weights(weights)
    for variable, value in zip(network.optimizer.variables, states, strict=True):
        variable.assign(value)
    return network


def run(plan: Plan) -> dict:
    hook = wbsp.SyncCallback(plan.address, plan.worker)
    rule = hook.rule
    parts = rule.micro_batches
    if rule.batch is not None:
        batches = hook.stream(data.shared_batch("shapes10", 0), plan.batch)
    else:
        batches = data.train_dataset("shapes10", plan.batch // parts, 0, plan.worker)
    network = network_for(plan, parts)
    network.fit(batches, epochs=1, steps_per_epoch=plan.steps * parts, verbose=0, shuffle=False,
                callbacks=[hook, Pause(plan.pause / parts)])
    result = network.evaluate(data.test_dataset("shapes10", count=1000), verbose=0,
                              return_dict=True)
    weights = b"".join(weight.tobytes() for weight in network.get_weights())
    return {"accuracy": result["accuracy"], "digest": hashlib.sha256(weights).hexdigest()}


if __name__ == "__main__":
    for line in sys.argv[2:] or sys.stdin:
        print("RESULT", json.dumps(run(Plan(**json.loads(line)))), flush=True)
