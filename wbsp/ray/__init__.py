"""Runs on a Ray cluster.

`wbsp.ray.run(train, workers=4)` places a server and workers, restarts processes that die, and
returns what each worker's `train` returned.

Ray places the processes and detects their deaths; training is that of any other run. The workers
read server address and index from the environment, as always (`wbsp.environment`).
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wbsp.ray.launch import run
    from wbsp.ray.placement import RunError
    from wbsp.ray.supervisor import Result
    from wbsp.ray.worker import Script

__all__ = ["Result", "RunError", "Script", "run"]
_AT = {"Result": "wbsp.ray.supervisor", "RunError": "wbsp.ray.placement",
       "Script": "wbsp.ray.worker", "run": "wbsp.ray.launch"}


def __getattr__(name: str) -> object:
    """Import the attribute at its first use: the command's help needs no Ray."""
    if name in _AT:
        return getattr(importlib.import_module(_AT[name]), name)
    raise AttributeError(f"module 'wbsp.ray' has no attribute {name!r}")
