"""A synchronization model that directs each worker, with its first push, to train half of the
script's batch, whatever its times. For tests of a worker whose batch the server chooses.
"""

from wbsp.sync.auto import Auto
from wbsp.sync.base import Direct


class Halves:
    def __init__(self):
        self._told = set()

    def leave(self, worker):
        self._told.discard(worker)

    def pushed(self, push, width):
        if push.batch is None or push.worker in self._told:
            return []
        self._told.add(push.worker)
        return [Direct(push.worker, batch=push.batch // 2, why="for a test")]


class Halving(Auto):
    name = "halving"

    def __init__(self, **options):
        super().__init__(**options)
        self._batches = Halves()
