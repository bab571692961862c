"""What a process computes to see how long a model's way is: from its device to the server and back.
"""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np

from scripts.gpu import networks
from scripts.harness import CONNECT, ratios, spread
from wbsp.access import Access
from wbsp.replica.model import open_replica
from wbsp.worker.comm.transport import Transport
from wbsp.worker.runtime import WorkerRuntime

VALUE = 2.0**-10  # sums of it are exact
LEAST = 3  # trips


class Flat(keras.Model):
    """One variable of so many floats, and no computing."""

    def __init__(self, size: int):
        super().__init__()
        self.x = self.add_weight(shape=(size,), initializer="zeros", name="x")
        self.built = True

    def step(self) -> None:
        """Add `VALUE` to each float, where they lie."""
        self.x.assign(self.x.value + VALUE)

    def ends(self) -> tuple[float, float]:
        """Return the first and the last float; waits for the device."""
        both = keras.ops.convert_to_numpy(keras.ops.stack([self.x.value[0], self.x.value[-1]]))
        return float(both[0]), float(both[1])


def trips(address: str, size: int, seconds: float) -> dict[str, Any]:
    """Round trips of the only worker of a run under asp, in turn with copies of the model from its
    device to the host and back again, for `seconds`, `LEAST` at least.

    A trip: a cut, the way to the server, the way back of the version that holds it, an adoption;
    over when the version lies in the model's variables. Raises RuntimeError where those hold
    anything else than all that was pushed.
    """
    model = Flat(size)
    replica = open_replica(model)
    transport = Transport(Access(address), 0, say=networks.silent)
    try:
        welcome = transport.hello({}, CONNECT)
        joined = transport.join(replica.layout, replica.read, CONNECT)
        runtime = WorkerRuntime(transport, replica, welcome.rule, joined, say=networks.silent)
        runtime.start()
        took: dict[str, list[float]] = {"trip": [], "copies": []}
        end, done = time.perf_counter() + seconds, 0
        while done < LEAST + 1 or time.perf_counter() < end:
            runtime.step_begins()
            model.step()
            model.ends()
            start = time.perf_counter()
            runtime.step_done(samples=1, loss=0.0)
            held = model.ends()
            took["trip"].append(time.perf_counter() - start)
            done += 1
            if held != (done * VALUE, done * VALUE):
                raise RuntimeError(f"after {done} trips the model holds {held}, "
                                   f"not {done * VALUE}")
            took["copies"].append(_copies(model))
        runtime.finish()
    finally:
        transport.close()
    trip, copies = took["trip"][1:], took["copies"][1:]  # the first ones take fresh memory
    return {"bytes": 4 * size, "trips": len(trip),
            "ms": {name: 1e3 * value for name, value in spread(trip).items()},
            "trip/copies": ratios(trip, copies)}


def _copies(model: Flat) -> float:
    """Seconds for a copy of the model to the host and another one back, in the back end's way."""
    start = time.perf_counter()
    host = np.array(keras.ops.convert_to_numpy(model.x.value))
    model.x.assign(host)
    model.ends()
    return time.perf_counter() - start
