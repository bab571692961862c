"""`python mixed_worker.py FRAMEWORK ADDRESS INDEX SECONDS FILE`: train the network of
`loop_worker.py`, with its BatchNorm, in PyTorch, a TensorFlow loop or JAX, under Keras's names;
write its final values to FILE in Keras's order and form.
"""

import sys
import time

import loop_worker
import numpy as np
from loop_worker import EPSILON, MOMENTUM, RATE, WIDTHS, data, worker

NAMES = ["sequential/dense/kernel", "sequential/dense/bias", "sequential/batch_normalization/gamma",
         "sequential/batch_normalization/beta", "sequential/dense_1/kernel",
         "sequential/dense_1/bias", "sequential/batch_normalization/moving_mean",
         "sequential/batch_normalization/moving_variance"]


def tensorflow(address, index, seconds):
    finals, why, _ = loop_worker.tensorflow(address, index, seconds)
    kernel, bias, gamma, beta, mean, variance, *last = finals
    return [kernel, bias, gamma, beta, *last, mean, variance], why


def torch(address, index, seconds):
    import torch
    x, y = map(torch.from_numpy, data())
    model = torch.nn.Sequential(
        torch.nn.Linear(*WIDTHS[:2]), torch.nn.ReLU(),
        torch.nn.BatchNorm1d(WIDTHS[1], eps=EPSILON, momentum=1 - MOMENTUM),
        torch.nn.Linear(*WIDTHS[1:]))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    mine = [("0.weight", (1, 0)), "0.bias", "2.weight", "2.bias", ("3.weight", (1, 0)), "3.bias",
            "2.running_mean", "2.running_var"]
    with worker(model, address, index, names=dict(zip(NAMES, mine, strict=True))) as w:
        for _ in w.epochs():
            for xs, ys in w.batches(x, y):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(xs), ys)
                loss.backward()
                optimizer.step()
                time.sleep(seconds)
                w.step(loss)
    state = model.state_dict()
    finals = [state[one].numpy() if isinstance(one, str) else
              state[one[0]].numpy().transpose(one[1]) for one in mine]
    return finals, w.stop_reason


def jax(address, index, seconds):
    import jax
    import jax.numpy as jnp
    x, y = data()
    first, second = jax.random.split(jax.random.key(index))
    wide = WIDTHS[1]
    params = {"first": jax.random.normal(first, WIDTHS[:2]) / 3, "bias": jnp.zeros(wide),
              "gamma": jnp.ones(wide), "beta": jnp.zeros(wide),
              "mean": jnp.zeros(wide), "var": jnp.ones(wide),
              "last": jax.random.normal(second, WIDTHS[1:]) / 4, "end": jnp.zeros(WIDTHS[2])}
    mine = ["first", "bias", "gamma", "beta", "last", "end", "mean", "var"]

    def loss_of(params, x, y):
        h = jax.nn.relu(x @ params["first"] + params["bias"])
        mean, var = h.mean(0), h.var(0)
        normal = (h - mean) / jnp.sqrt(var + EPSILON) * params["gamma"] + params["beta"]
        scores = jax.nn.log_softmax(normal @ params["last"] + params["end"])
        return -jnp.take_along_axis(scores, y[:, None], 1).mean(), (mean, var)

    @jax.jit
    def train(params, x, y):
        (loss, (mean, var)), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, x, y)
        new = {name: value - RATE * gradients[name] for name, value in params.items()}
        new["mean"] = MOMENTUM * params["mean"] + (1 - MOMENTUM) * mean
        new["var"] = MOMENTUM * params["var"] + (1 - MOMENTUM) * var
        return new, loss

    with worker(params, address, index, names=dict(zip(NAMES, mine, strict=True))) as w:
        params = w.values
        for _ in w.epochs():
            for xs, ys in w.batches(x, y):
                params, loss = train(params, xs, ys)
                time.sleep(seconds)
                params = w.step(loss, params)
    return [np.asarray(w.values[name]) for name in mine], w.stop_reason


if __name__ == "__main__":
    kind, address, index, seconds, file = sys.argv[1:]
    finals, why = globals()[kind](address, int(index), float(seconds))
    x, y = data()
    kernel, bias, gamma, beta, last, end, mean, variance = finals
    normal = (np.maximum(x @ kernel + bias, 0) - mean) / np.sqrt(variance + EPSILON) * gamma + beta
    np.savez(file, *map(np.ascontiguousarray, finals))
    print("ended:", why)
    print("accuracy", ((normal @ last + end).argmax(1) == y).mean())
