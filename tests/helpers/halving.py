"""A model that gives each worker half of the script's batch with its first push, whatever its
times: what a worker does with a batch that it is directed."""

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
