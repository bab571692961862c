"""`python keras_worker.py PLAN`: train shapes10 in one run, and print the result.

PLAN is JSON, see `Plan`.
"""

from __future__ import annotations

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
    """The plan of one run of this worker."""

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


def network_for(plan: Plan, parts: int) -> keras.Model:
    network = training.compile(models.build("small", 0), "small", micro_batches=parts,
                               jit_compile=False)
    # A rate that falls to nothing: the last version is then a matter of the training, not of whose
    # push happened to come last.
    network.optimizer.learning_rate = keras.optimizers.schedules.PolynomialDecay(
        plan.rate, plan.steps * parts, end_learning_rate=0.0, power=0.5)
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
    print("RESULT", json.dumps(run(Plan(**json.loads(sys.argv[1])))), flush=True)
