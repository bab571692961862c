"""A server's own evaluator, without a network: see `wbsp.ps.evaluation`."""

from __future__ import annotations

import math

from wbsp.access import Access
from wbsp.ps.evaluation import EvaluatorError
from wbsp.reading import Reader
from wbsp.runlog.files import write_whole

_WORK, _AGAIN = 0.02, 1.0  # seconds: for a version, and until it tries again to save one


class SimulatedEvaluator:
    """An evaluator that works, or hangs or dies at an evaluation that `draw` chooses, perhaps the
    last one.

    Attributes:
        process: the server's, with which it ends.
    """

    def __init__(self, cluster, process, draw, at):
        self._plan, self._at, self._process = cluster.plan, at, process
        self._left = draw.choice([0, 0, 1, 3, math.inf])  # evaluations until then
        self._signs, self._problem = 0, None
        self._own = cluster.process(f"e-{process.name}", process.machine)
        process.files.append(self)
        self._own.start(self._run)

    def problem(self):
        return self._problem

    def signs(self):
        return self._signs

    def kill(self):
        self._own.kill()

    close = die = kill

    def save(self):
        self._left = min(self._left, 0) if self._left < math.inf else 0
        self._work()
        while True:
            try:
                return write_whole(self._at.model, b"keras")
            except OSError:  # a full disk
                self._own.sleep(_AGAIN)

    def _run(self):
        reader = Reader(Access(self._at.address, token=self._at.token, patience=300.0),
                        lambda line: None, on=self._own.host, key=self._at.key)
        newest = None
        try:
            while (version := reader.next(0.0)) is not None:
                if version.number != newest:
                    self._work()
                    self._left -= 1
                    version.report(loss=1.0, accuracy=0.5, top5=0.9)
                    newest = version.number
                if version.last:
                    self.save()
        except (EvaluatorError, ConnectionError) as error:
            self._problem = EvaluatorError(str(error))

    def _work(self):
        self._own.sleep(_WORK)
        if self._plan.evaluator == "dies" and self._left <= 0:
            raise EvaluatorError("the evaluator process was killed by signal 9")
        if self._plan.evaluator == "hangs" and self._left <= 0:
            self._own.sleep(1e9)
        self._signs += 1
