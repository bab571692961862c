"""`python loop_worker.py KIND ADDRESS INDEX SECONDS FILE [LOCAL]`: train one network on shared data
in one of the loops that a worker may have, and write its final values to FILE.

KIND is fit (of Keras, on KERAS_BACKEND), tensorflow, train_on_batch, torch or jax. Each step takes
SECONDS longer. LOCAL is a prefix of names of local variables. With --seed all kinds begin with the
same weights, otherwise each worker with different ones. The network is Keras's on every framework
(Dense, BatchNormalization with its defaults, Dense), but PyTorch's running variance is 32/31 of the
others'. Accuracy is measured on examples that were not trained. The last line lists the frameworks
that the process has imported.
"""

import argparse
import sys
import time

import numpy as np

import wbsp

N, BATCH, EPOCHS, RATE = 512, 32, 12, 0.2
WIDTHS = 6, 16, 3
MOMENTUM, EPSILON = 0.99, 1e-3  # of BatchNorm, as Keras has them
LOCAL: list[str] = []
SEED = 0  # of the initial weights


def data():
    return drawn(N, 0)


def unseen():
    return drawn(10_000, 1)


def drawn(n, seed):
    x = np.random.default_rng(seed).normal(size=(n, WIDTHS[0])).astype("float32")
    return x, np.abs(x[:, :WIDTHS[-1]]).argmax(axis=1)


def kernels():
    """Return the initial weights of both Dense layers, drawn by Keras's default: Glorot's uniform.
    """
    draw = np.random.default_rng(SEED)
    for shape in (WIDTHS[:2], WIDTHS[1:]):
        most = (6 / sum(shape)) ** 0.5
        yield draw.uniform(-most, most, shape).astype("float32")


def worker(values, address, index, **given):
    return wbsp.Worker(values, n=N, batch_size=BATCH, epochs=EPOCHS, address=address,
                       worker_index=index, local=LOCAL, **given)


def keras_model():
    import keras
    model = keras.Sequential([
        keras.Input(WIDTHS[:1]), keras.layers.Dense(WIDTHS[1], "relu"),
        keras.layers.BatchNormalization(momentum=MOMENTUM, epsilon=EPSILON),
        keras.layers.Dense(WIDTHS[2])])
    for layer, kernel in zip(model.layers[::2], kernels(), strict=True):
        layer.kernel.assign(kernel)
    model.compile(keras.optimizers.SGD(RATE), keras.losses.SparseCategoricalCrossentropy(
        from_logits=True), jit_compile=False)
    return model


def fit(address, index, seconds):
    import keras
    x, y = data()
    model, hook = keras_model(), wbsp.SyncCallback(address, index, local=LOCAL)

    class Slow(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            time.sleep(seconds)

    model.fit(hook.examples(lambda i: (x[i], y[i]), n=N, batch_size=BATCH), epochs=EPOCHS,
              steps_per_epoch=hook.UNTIL_TOLD, verbose=0, callbacks=[hook, Slow()])
    return model.get_weights(), hook.stop_reason, model.predict(unseen()[0], verbose=0)


def train_on_batch(address, index, seconds):
    x, y = data()
    model = keras_model()
    with worker(model, address, index) as w:
        for _ in w.epochs():
            for xs, ys in w.batches(x, y):
                time.sleep(seconds)
                w.step(model.train_on_batch(xs, ys))
    return model.get_weights(), w.stop_reason, model.predict(unseen()[0], verbose=0)


def tensorflow(address, index, seconds):
    import keras
    import tensorflow as tf
    x, y = map(tf.constant, data())
    model = keras_model()

    @tf.function(reduce_retracing=True)
    def train(indices):
        with tf.GradientTape() as tape:
            loss = model.loss(tf.gather(y, indices), model(tf.gather(x, indices), training=True))
        model.optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables),
                                            model.trainable_variables, strict=True))
        return loss

    with worker(model, address, index) as w:
        for _ in w.epochs():
            for indices in w.indices():
                time.sleep(seconds)
                w.step(train(tf.constant(indices)))
    return model.get_weights(), w.stop_reason, keras.ops.convert_to_numpy(model(unseen()[0]))


def torch(address, index, seconds):
    import torch
    x, y = map(torch.from_numpy, data())
    model = torch.nn.Sequential(
        torch.nn.Linear(*WIDTHS[:2]), torch.nn.ReLU(),
        torch.nn.BatchNorm1d(WIDTHS[1], eps=EPSILON, momentum=1 - MOMENTUM),
        torch.nn.Linear(*WIDTHS[1:]))
    for layer, kernel in zip((model[0], model[3]), kernels(), strict=True):
        layer.weight.data = torch.from_numpy(kernel.T.copy())
        torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    with worker(model, address, index) as w:
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y),
                                             batch_sampler=w.sampler, num_workers=index,
                                             persistent_workers=index > 0)
        for _ in w.epochs():
            for xs, ys in w.batches(loader):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(xs), ys)
                loss.backward()
                optimizer.step()
                time.sleep(seconds)
                w.step(loss)
    model.eval()
    finals = [tensor.numpy() for tensor in model.state_dict().values() if tensor.dim()]
    return finals, w.stop_reason, model(torch.from_numpy(unseen()[0])).detach().numpy()


def jax(address, index, seconds):
    import jax
    import jax.numpy as jnp
    import optax
    x, y = data()
    first, last = map(jnp.asarray, kernels())
    wide = WIDTHS[1]
    params = [(first, jnp.zeros(wide)),
              (jnp.ones(wide), jnp.zeros(wide), jnp.zeros(wide), jnp.ones(wide)),
              (last, jnp.zeros(WIDTHS[2]))]
    optimizer = optax.sgd(RATE)

    def logits(params, x, training):
        (first, bias), (gamma, beta, mean, variance), (last, end) = params
        h = jax.nn.relu(x @ first + bias)
        if training:
            mean, variance = h.mean(0), h.var(0)
        normal = (h - mean) / jnp.sqrt(variance + EPSILON) * gamma + beta
        return normal @ last + end, (mean, variance)

    def loss_of(params, x, y):
        scores, seen = logits(params, x, True)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean(), seen

    @jax.jit
    def train(params, state, x, y):
        (loss, seen), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, x, y)
        updates, state = optimizer.update(gradients, state)
        first, (gamma, beta, *was), last = optax.apply_updates(params, updates)
        now = [MOMENTUM * old + (1 - MOMENTUM) * new for old, new in zip(was, seen, strict=True)]
        return [first, (gamma, beta, *now), last], state, loss

    with worker(params, address, index) as w:
        params = w.values
        state = optimizer.init(params)
        for _ in w.epochs():
            for indices in w.indices():
                params, state, loss = train(params, state, x[indices], y[indices])
                time.sleep(seconds)
                params = w.step(loss, params)
    finals = [np.asarray(leaf) for leaf in jax.tree.leaves(w.values)]
    return finals, w.stop_reason, np.asarray(logits(w.values, unseen()[0], False)[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, kind in {"kind": str, "address": str, "index": int, "seconds": float, "file": str
                       }.items():
        parser.add_argument(name, type=kind)
    parser.add_argument("local", nargs="*")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--examples", type=int, default=N)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    args = parser.parse_args()
    N, EPOCHS, LOCAL = args.examples, args.epochs, args.local
    SEED = args.index if args.seed is None else args.seed
    finals, why, outputs = globals()[args.kind](args.address, args.index, args.seconds)
    np.savez(args.file, *finals)
    print("ended:", why)
    print("accuracy", (outputs.argmax(1) == unseen()[1]).mean())
    print("imported:", *sorted({"keras", "tensorflow", "torch", "jax"} & set(sys.modules)))
