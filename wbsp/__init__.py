"""wbsp: one parameter server, many unequal workers, any synchronization model.

`SyncCallback` makes a `keras.Model.fit` one worker of a run; `python -m wbsp.ps` is its server.
`read_run` reads the folder that a run leaves.

What `__all__` of these modules names is for users, and stays: wbsp, wbsp.sync, wbsp.testing,
wbsp.simulate, wbsp.ray, wbsp.cluster, wbsp.runlog.reader. All else is private.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wbsp.runlog.reader import read_run
    from wbsp.worker.keras.callback import SyncCallback

__version__ = "0.1.0"
__all__ = ["SyncCallback", "read_run"]


def __getattr__(name: str) -> object:
    """The attribute, imported at its first use: the server must not import TensorFlow."""
    if name == "SyncCallback":
        from wbsp.worker.keras.callback import SyncCallback
        return SyncCallback
    if name == "read_run":
        from wbsp.runlog.reader import read_run
        return read_run
    raise AttributeError(f"module 'wbsp' has no attribute {name!r}")
