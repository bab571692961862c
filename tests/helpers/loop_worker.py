"""`python loop_worker.py KIND ADDRESS INDEX SECONDS FILE [LOCAL]`: trains one network on shared
data in one of the loops that a worker may have, and leaves its final values in FILE.

KIND is fit (of Keras, on KERAS_BACKEND), tensorflow, train_on_batch, torch or jax. Each step takes
SECONDS more. LOCAL is what names of variables begin with that are the worker's own. The last line
says which frameworks the process has imported.
"""

import sys
import time

import numpy as np

import wbsp

N, BATCH, EPOCHS, RATE = 512, 32, 12, 0.2
WIDTHS = 6, 16, 3
LOCAL: list[str] = []


def data():
    x = np.random.default_rng(0).normal(size=(N, WIDTHS[0])).astype("float32")
    return x, np.abs(x[:, :WIDTHS[-1]]).argmax(axis=1)


def worker(values, address, index, **given):
    return wbsp.Worker(values, n=N, batch_size=BATCH, epochs=EPOCHS, address=address,
                       worker_index=index, local=LOCAL, **given)


def keras_model():
    import keras
    model = keras.Sequential([
        keras.Input(WIDTHS[:1]), keras.layers.Dense(WIDTHS[1], "relu"),
        keras.layers.BatchNormalization(), keras.layers.Dense(WIDTHS[2])])
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
    return model.get_weights(), hook.stop_reason, model.predict(x, verbose=0)


def train_on_batch(address, index, seconds):
    x, y = data()
    model = keras_model()
    with worker(model, address, index) as w:
        for _ in w.epochs():
            for xs, ys in w.batches(x, y):
                time.sleep(seconds)
                w.step(model.train_on_batch(xs, ys))
    return model.get_weights(), w.stop_reason, model.predict(x, verbose=0)


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
    return model.get_weights(), w.stop_reason, keras.ops.convert_to_numpy(model(x))


def torch(address, index, seconds):
    import torch
    x, y = map(torch.from_numpy, data())
    model = torch.nn.Sequential(
        torch.nn.Linear(*WIDTHS[:2]), torch.nn.ReLU(), torch.nn.BatchNorm1d(WIDTHS[1]),
        torch.nn.Linear(*WIDTHS[1:]))
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
    return finals, w.stop_reason, model(x).detach().numpy()


def jax(address, index, seconds):
    import jax
    import jax.numpy as jnp
    import optax
    x, y = data()
    draw = jax.nn.initializers.glorot_uniform()
    keys = jax.random.split(jax.random.key(index))
    params = [(draw(key, shape), jnp.zeros(shape[1])) for key, shape in zip(
        keys, (WIDTHS[:2], WIDTHS[1:]), strict=True)]
    optimizer = optax.sgd(RATE)

    def logits(params, x):
        (first, bias), (last, end) = params
        return jax.nn.relu(x @ first + bias) @ last + end

    @jax.jit
    def train(params, state, x, y):
        loss, gradients = jax.value_and_grad(
            lambda params: optax.softmax_cross_entropy_with_integer_labels(
                logits(params, x), y).mean())(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss

    with worker(params, address, index) as w:
        params = w.values
        state = optimizer.init(params)
        for _ in w.epochs():
            for indices in w.indices():
                params, state, loss = train(params, state, x[indices], y[indices])
                time.sleep(seconds)
                params = w.step(loss, params)
    finals = [np.asarray(leaf) for leaf in jax.tree.leaves(w.values)]
    return finals, w.stop_reason, np.asarray(logits(w.values, x))


if __name__ == "__main__":
    kind, address, index, seconds, file, *LOCAL = sys.argv[1:]
    finals, why, outputs = globals()[kind](address, int(index), float(seconds))
    np.savez(file, *finals)
    print("ended:", why)
    print("accuracy", (outputs.argmax(1) == data()[1]).mean())
    print("imported:", *sorted({"keras", "tensorflow", "torch", "jax"} & set(sys.modules)))
