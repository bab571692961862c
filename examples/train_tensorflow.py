"""A training loop in TensorFlow, with a GradientTape in a tf.function, as one worker of a run.

    wbsp ps --worker_num=2 --sync=pcc
    python examples/train_tensorflow.py
    python examples/train_tensorflow.py --sleep=0.1
"""

import argparse
import time

import keras
import tensorflow as tf
from pictures import pictures

import wbsp

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--data", help="folder of CIFAR-10's binary files; default: draw pictures")
parser.add_argument("--epochs", type=int, default=3, help="of all workers together")
parser.add_argument("--sleep", type=float, default=0.0, help="seconds in each step: a slow worker")
flags = parser.parse_args()

(x, y), test = pictures(flags.data)
x, y = tf.constant(x), tf.constant(y)
model = keras.Sequential([keras.Input((32, 32, 3))])
for width in (16, 32, 32):
    model.add(keras.layers.Conv2D(width, 3, padding="same"))
    model.add(keras.layers.BatchNormalization(momentum=0.9))
    model.add(keras.layers.ReLU())
    model.add(keras.layers.MaxPooling2D())
model.add(keras.layers.Flatten())
model.add(keras.layers.Dense(10))
optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
optimizer.build(model.trainable_variables)
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function(reduce_retracing=True)
def train(indices):
    with tf.GradientTape() as tape:
        loss = entropy(tf.gather(y, indices), model(tf.gather(x, indices), training=True))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables),
                                  model.trainable_variables, strict=True))
    return loss


with wbsp.Worker(model, n=len(x), batch_size=64, epochs=flags.epochs) as w:
    for epoch in w.epochs():
        for indices in w.indices():
            loss = train(tf.constant(indices))
            time.sleep(flags.sleep)
            w.step(loss)  # not in the tf.function, which calls Python when it is traced
        print(f"epoch {epoch + 1}: {w.progress()}", flush=True)

# behind the block the model is the run's final version, the same on all workers
right = model.predict(test[0], verbose=0).argmax(1) == test[1]
print(f"{w.stop_reason}; accuracy {right.mean():.4f}")
