"""An evaluator without a network: see `wbsp.ps.evaluation.Evaluator`."""

from __future__ import annotations

import math

from integer_replica import IntegerReplica

from wbsp.ps.evaluation import Evaluation, EvaluatorError
from wbsp.runlog.files import write_whole

_WORK = 0.02  # seconds that it takes for a version


class SimulatedEvaluator:
    """It works, or it hangs or dies at the work that `draw` says, the last one perhaps."""

    def __init__(self, process, plan, draw):
        self._process, self._plan = process, plan
        self._left = draw.choice([0, 0, 1, 3, math.inf])  # evaluations until then
        self._signs, self._busy, self._killed = 0, False, None
        self._condition = process.host.scheduler.condition()

    def initial(self):
        replica = IntegerReplica(0, self._plan.size)
        return replica.read(), replica.layout

    def evaluate(self, snapshot):
        self._work()
        self._left -= 1
        return Evaluation(1.0, 0.5, 0.9)

    def save(self, snapshot, path):
        self._left = min(self._left, 0) if self._left < math.inf else 0
        self._work()
        write_whole(path, snapshot.vector.tobytes())

    def signs(self):
        return self._signs if self._busy else None

    def kill(self):
        self._killed = True
        with self._condition:
            self._condition.notify_all()

    close = kill

    def _work(self):
        self._busy = True
        self._process.sleep(_WORK)
        if self._plan.evaluator == "dies" and self._left <= 0:
            raise EvaluatorError("the evaluator process was killed by signal 9")
        with self._condition:
            while self._plan.evaluator == "hangs" and self._left <= 0 and not self._killed:
                self._condition.wait()
        if self._killed:
            raise EvaluatorError("the evaluator process was killed")
        self._signs, self._busy = self._signs + 1, False
