"""Models on two devices under a `keras.distribution`; in processes of their own, which have two."""

import numpy as np
import pytest
from conservation import steps_of

from wbsp.ps.checkpoint import format as checkpoint

pytestmark = pytest.mark.slow  # a back end takes its seconds to start

DISTRIBUTED = """
import sys
import jax
import keras
import numpy as np
import wbsp
from keras import distribution
from wbsp.replica.model import open_replica

how, address, index = sys.argv[1:]
assert len(jax.devices()) == 2
if how == "data":
    chosen = distribution.DataParallel()
else:
    parts = distribution.LayoutMap(distribution.DeviceMesh((1, 2), ("batch", "model")))
    parts[".*first/kernel"], parts[".*first/bias"] = (None, "model"), ("model",)
    chosen = distribution.ModelParallel(layout_map=parts, batch_dim_name="batch")
distribution.set_distribution(chosen)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu", name="first"),
                          keras.layers.BatchNormalization(), keras.layers.Dense(2)])
everything = [*model.trainable_weights, *model.non_trainable_weights]
first = everything[0]

def held():
    return np.concatenate([np.asarray(v.value).ravel() for v in everything])

def where():
    return [v.value.sharding.devices_indices_map(tuple(v.shape)) for v in everything]

placed = where()
halves = {str(part) for part in placed[0].values()}
assert len(halves) == {"data": 1, "model": 2}[how], "what should be tested is not there"
replica = open_replica(model)
w = np.arange(held().size, dtype=np.float32) / 8
replica.adopt(replica.bring(w), "replace")
assert np.array_equal(held(), w) and where() == placed
first.assign(first.value + 1)
replica.stepped()
x, new = held(), np.full_like(w, 3)
replica.adopt(replica.bring(new), "rebase")
assert np.array_equal(held(), new + (x - w)) and where() == placed
assert np.array_equal(np.asarray(replica.cut()), held() - new)
first.assign(first.value * 2)
replica.stepped()
assert np.array_equal(np.asarray(replica.cut()), held() - (new + (x - w)))

x = np.random.default_rng(int(index)).normal(size=(640, 8)).astype("float32")
model.compile(keras.optimizers.Adam(0.01),
              keras.losses.SparseCategoricalCrossentropy(from_logits=True))
hook = wbsp.SyncCallback(address, worker_index=int(index))
model.fit(x, x[:, 0] > 0, batch_size=32, epochs=4, verbose=0, callbacks=[hook])
assert where() == placed
np.save(f"worker{index}.npy", held())
print("all is as it should be")
"""


@pytest.mark.long
def test_workers_on_two_devices_each_train_one_model(jobs):
    server = jobs.server(sync="pcc").listens()
    script = jobs.folder / "distributed.py"
    script.write_text(DISTRIBUTED)
    workers = [jobs.start(how, script, how, server.address, index, KERAS_BACKEND="jax",
                          JAX_PLATFORMS="cpu",
                          XLA_FLAGS="--xla_force_host_platform_device_count=2")
               for index, how in enumerate(("data", "model"))]
    for job in (*workers, server):
        job.ends_well()
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    assert steps_of(saved.state) == {0: 80, 1: 80}
    for index, worker in enumerate(workers):
        assert worker.find("all is as it should be")
        assert np.load(jobs.folder / f"worker{index}.npy").tobytes() == saved.vector.tobytes()
