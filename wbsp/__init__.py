"""wbsp: one parameter server, many unequal workers, any synchronization model.

`SyncCallback` makes a `keras.Model.fit` one worker of a run; `python -m wbsp.ps` is its server.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wbsp.worker.keras.callback import SyncCallback

__version__ = "0.1.0"
__all__ = ["SyncCallback"]


def __getattr__(name: str) -> object:
    """The attribute, imported at its first use: the server must not import TensorFlow."""
    if name == "SyncCallback":
        from wbsp.worker.keras.callback import SyncCallback
        return SyncCallback
    raise AttributeError(f"module 'wbsp' has no attribute {name!r}")
