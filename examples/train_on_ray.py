"""A function of yours in every worker of a run on a Ray cluster.

    ray job submit --working-dir . -- python examples/train_on_ray.py --workers=2

runs it on a cluster, which the environment's RAY_ADDRESS names; without one, `python
examples/train_on_ray.py` starts a Ray of this machine.
"""

import argparse
import sys

import wbsp.ray


def train(config):
    """Train as one worker; server and index are read from the environment."""
    import keras
    import numpy as np

    hook = wbsp.SyncCallback()
    draw = np.random.default_rng(hook.worker)  # each worker has examples of its own
    x = draw.normal(size=(6400, 32)).astype("float32")
    y = x[:, :10].argmax(axis=1)

    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, "relu"),
                              keras.layers.BatchNormalization(), keras.layers.Dense(10)])
    model.compile(keras.optimizers.Adam(config["rate"]),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=["accuracy"])
    fitted = model.fit(x, y, batch_size=64, epochs=config["epochs"], verbose=2, callbacks=[hook])
    # every worker holds the final global version now; one of them is enough to bring it back
    weights = model.get_weights() if hook.worker == 0 else None
    return {"accuracy": fitted.history["accuracy"][-1], "weights": weights}


parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--cpus", type=float, default=1, help="of each worker")
parser.add_argument("--gpus", type=float, default=0, help="of each worker")
parser.add_argument("--storage", default="~/ray_results", help="a folder that all nodes see")
parser.add_argument("--placement_timeout", type=float, default=60.0, help="seconds")
flags = parser.parse_args()
try:
    result = wbsp.ray.run(
        train, workers=[{"CPU": flags.cpus, "GPU": flags.gpus}] * flags.workers, sync="pcc",
        config={"rate": 0.001, "epochs": 5}, storage=flags.storage,
        placement_timeout=flags.placement_timeout)
except (ValueError, wbsp.ray.RunError) as error:
    sys.exit(f"train_on_ray: {error}")
for worker, returned in enumerate(result.returned):
    print(f"worker {worker}:", result.missing.get(worker) or f"{returned['accuracy']:.1%}")
print(f"{result.summary['total']['steps']:,} steps in all; the files are in {result.folder}")
