"""Runs on a Ray cluster: `wbsp.ray.run(train, workers=4)` places a server and workers, starts again
what dies, and returns what each worker's `train` returned.

Ray says what runs where and which process has died; training is that of any other run. Who is who
reaches the workers by the environment, as everywhere (`wbsp.cluster`).
"""

from wbsp.ray.placement import RunError
from wbsp.ray.run import Result, Script, run

__all__ = ["Result", "RunError", "Script", "run"]
