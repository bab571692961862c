"""wbsp: one parameter server, many unequal workers, any synchronization model.

`SyncCallback` makes a `keras.Model.fit` one worker of a run; `Worker` does so for any other
training loop, with or without Keras. `python -m wbsp.ps` is the server. `RunSchedule` is a learning
rate that follows the steps of all workers. `versions` yields the versions of a run to a process
that evaluates them. `load` puts a version that a run has saved into a model; `read_run` reads a
run's folder.

The names in `__all__` of these modules are public, and stay: wbsp, wbsp.sync, wbsp.testing,
wbsp.simulate, wbsp.ray, wbsp.cluster, wbsp.runlog.reader. All others are private.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wbsp.reading import versions
    from wbsp.runlog.reader import read_run
    from wbsp.saved import load
    from wbsp.worker.any_loop import Worker
    from wbsp.worker.keras.callback import SyncCallback
    from wbsp.worker.keras.run_schedule import RunSchedule

__version__ = "1.0.0rc1"
__all__ = ["RunSchedule", "SyncCallback", "Worker", "load", "read_run", "versions"]
_AT = {"RunSchedule": "wbsp.worker.keras.run_schedule",
       "SyncCallback": "wbsp.worker.keras.callback", "Worker": "wbsp.worker.any_loop",
       "load": "wbsp.saved", "read_run": "wbsp.runlog.reader", "versions": "wbsp.reading"}


def __getattr__(name: str) -> object:
    """Import the attribute at its first use: the server must not import TensorFlow."""
    if name in _AT:
        try:
            return getattr(importlib.import_module(_AT[name]), name)
        except ModuleNotFoundError as error:
            if error.name not in ("keras", "tensorflow", "jax", "torch"):
                raise
            from wbsp.worker.errors import says_all

            lacks = ("Keras, which is not installed: pip install keras" if error.name == "keras"
                     else f"{error.name} below Keras, which is not installed: name what is, "
                          "such as KERAS_BACKEND=torch")
            raise says_all(ModuleNotFoundError(
                f"wbsp.{name} needs {lacks}; a loop without Keras takes wbsp.Worker",
                name=error.name)) from None
    raise AttributeError(f"module 'wbsp' has no attribute {name!r}")
