"""A training loop in JAX, with optax, as one worker of a run; without Keras and TensorFlow.

    wbsp ps --worker_num=2 --sync=pcc
    python examples/train_jax.py
    python examples/train_jax.py --sleep=0.1
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pictures import pictures

import wbsp

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--data", help="folder of CIFAR-10's binary files; default: draw pictures")
parser.add_argument("--epochs", type=int, default=3, help="of all workers together")
parser.add_argument("--sleep", type=float, default=0.0, help="seconds in each step: a slow worker")
flags = parser.parse_args()

(x, y), test = pictures(flags.data)
widths = (3, 16, 32, 32)
keys = jax.random.split(jax.random.key(0), 4)
draw = jax.nn.initializers.he_normal()
params = {f"conv{n}": {"kernel": draw(keys[n], (3, 3, *widths[n:n + 2])),
                       "scale": jnp.ones(widths[n + 1]), "bias": jnp.zeros(widths[n + 1])}
          for n in range(3)}
params["head"] = {"kernel": draw(keys[3], (32 * 4 * 4, 10)), "bias": jnp.zeros(10)}
optimizer = optax.sgd(0.05, momentum=0.9)


def logits(params, x):
    for n in range(3):
        layer = params[f"conv{n}"]
        x = jax.lax.conv_general_dilated(x, layer["kernel"], (1, 1), "SAME",
                                         dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.standardize(x, axis=(0, 1, 2)) * layer["scale"] + layer["bias"]  # of its batch
        x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1),
                                  (1, 2, 2, 1), "VALID")
    return x.reshape(len(x), -1) @ params["head"]["kernel"] + params["head"]["bias"]


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train(params, state, x, y):
    def entropy(params):
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()

    loss, gradients = jax.value_and_grad(entropy)(params)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


with wbsp.Worker(params, n=len(x), batch_size=64, epochs=flags.epochs) as w:
    params = w.values  # the version that all workers begin from
    state = optimizer.init(params)
    for epoch in w.epochs():
        for indices in w.indices():
            params, state, loss = train(params, state, x[indices], y[indices])
            time.sleep(flags.sleep)
            params = w.step(loss, params)  # the same arrays, unless a version was adopted
        print(f"epoch {epoch + 1}: {w.progress()}", flush=True)

# behind the block w.values are the run's final version, the same on all workers
right = np.asarray(jax.jit(logits)(w.values, test[0])).argmax(1) == test[1]
print(f"{w.stop_reason}; accuracy {right.mean():.4f}")
