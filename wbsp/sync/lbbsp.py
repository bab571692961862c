"""LB-BSP: load-balanced bulk synchronous parallel.

Source: Chen, Weng, Wang, Li, Li, "Accelerating distributed learning in non-dedicated environments",
IEEE Transactions on Cloud Computing 2021, doi 10.1109/TCC.2021.3102593; earlier SoCC 2020,
arXiv 1806.02508.
"""

from wbsp.sync.balance import Shifter, Solver
from wbsp.sync.base import (
    About,
    Accept,
    Action,
    Commit,
    Direct,
    Grant,
    Option,
    Push,
    SyncModel,
    WorkerRule,
)
from wbsp.sync.predict import PREDICTORS
from wbsp.sync.round import Barrier

_NO_LIMIT = 1 << 40  # examples


class LBBSP(SyncModel):
    """BSP in which a fast worker trains a larger batch, so that all end together.

        worker: train x_i examples of the shared stream; push; wait for the next version; x = W
        server: accept(p, samples / X); all active workers have pushed:
                    commit; sizes x_i with sum X = N * batch; direct x_i to each; grant all

    The load is fixed within a round and changes only at its end [paper]. By the weights a version
    is one step of SGD on the union of the batches, as in BSP; with equal speeds it is BSP. The
    option `controller` chooses how x_i is found:

        cpu:        minimize max_i t_i(x_i), t_i(x) = x / v_i + q_i, v_i predicted [paper]; q_i from
                    the steps themselves [ours]
        gpu:        examples move from the slowest to the fastest [paper]: see `Shifter`
        federated:  as cpu, for rounds of `tau` steps on the clients' own data:
                    t_i(x) = tau (x / v_i + q_i) + c_i [paper], where the communication c_i is the
                    time from the grant to the push, less the compute in it [ours]

    The examples of a round are consecutive in the stream: worker k takes [p, p + x_k), the next
    worker continues there, and so does the next round. The examples of a lost worker are lost with
    it, unless the workers share the run's data: then the ledger assigns them to other workers. A
    worker that joins takes `batch` examples. X is the sum of the sizes of the active workers: it
    changes when they join and leave, and is N * batch again from the next commit on.
    """

    name = "lbbsp"
    about = About(
        bound="no update is stale; load moves at barriers only",
        waits="little: batches are sized so that all end together",
        traffic="N pushes and N fetches a version",
        source="Chen et al., IEEE TCC 2021",
        certainty="outline from the paper; predictor sizes, GPU controller's details and "
                  "federated weights reconstructed")
    OPTIONS = {
        "controller": Option("cpu", "how sizes are found", choices=("cpu", "gpu", "federated")),
        "predictor": Option("narx", "of the next speed (cpu, federated)",
                            choices=tuple(PREDICTORS)),
        "batch": Option(128, "examples of a worker's batch, on average", low=1),
        "low": Option(1, "the smallest batch", low=1),
        "high": Option(0, "the largest batch; 0: no limit", low=0),
        "grain": Option(1, "all batches are multiples of it", low=1),
        "tau": Option(10, "steps in a round (federated)", low=1),
        "window": Option(5, "rounds between two moves (gpu)", low=1),
        "coarse": Option(16, "examples in a move at first (gpu)", low=1),
        "fine": Option(4, "examples in a move later (gpu)", low=1),
    }

    controller: str
    predictor: str
    batch: int
    low: int
    high: int
    grain: int
    tau: int
    window: int
    coarse: int
    fine: int

    def __init__(self, **options: object):
        super().__init__(**options)
        self._check_options()
        federated = self.controller == "federated"
        self.rule = WorkerRule(push="every_step", wait="model", adopt="replace",
                               every=self.tau if federated else 1, shared=not federated,
                               batch=self.batch)
        self.round = Barrier(self.active)
        self.sizes: dict[int, int] = {}  # of the running round
        self._sum = 0  # of these
        self._position = 0  # in the shared stream: no example from here on was given away
        self._granted: dict[int, float] = {}  # worker -> when
        grain = self.grain
        bounds = -(-self.low // grain) * grain, (self.high or _NO_LIMIT) // grain * grain, grain
        self.balancer: Solver | Shifter
        if self.controller == "gpu":
            self.balancer = Shifter(self.batch, *bounds, self.window, self.coarse, self.fine)
        else:
            self.balancer = Solver(self.predictor, self.batch, *bounds, self.rule.every, federated)

    def _check_options(self) -> None:
        measured = ["batch", *(["coarse", "fine"] if self.controller == "gpu" else [])]
        for key in measured:
            if getattr(self, key) % self.grain:
                raise ValueError(f"{self.name}: {key}={getattr(self, key)} is not a multiple of "
                                 f"grain={self.grain}; give one that is")
        if not self.low <= self.batch <= (self.high or self.batch):
            raise ValueError(f"{self.name}: batch={self.batch} is not between low={self.low} and "
                             f"high={self.high}; it is the mean of all batches")
        if self.controller == "gpu" and self.fine > self.coarse:
            raise ValueError(f"{self.name}: fine={self.fine} is above coarse={self.coarse}; a fine "
                             "step is the smaller one")

    def weight_of(self, push: Push) -> float:
        return push.samples / (self._sum * self.rule.every)

    def join(self, worker: int, now: float) -> list[Action]:
        self._enter(worker, now)
        return [self._direct(worker), Grant(worker)]

    def rejoin(self, worker: int, ahead: int, now: float) -> list[Action]:
        if not ahead:
            return self.join(worker, now)
        self._enter(worker, now)
        self.round.lead(worker, ahead)  # the end of that round grants it
        return []

    def _enter(self, worker: int, now: float) -> None:
        super().join(worker, now)
        self.round.join(worker)
        self.balancer.join(worker)
        self.sizes[worker] = self.batch
        self._sum += self.batch
        self._granted[worker] = now

    def leave(self, worker: int, now: float) -> list[Action]:
        super().leave(worker, now)
        self.round.leave(worker)
        self.balancer.leave(worker)
        size = self.sizes.pop(worker)
        if worker not in self.round.absent:
            self._sum -= size
        return self._commit_if_complete(now)

    def push(self, push: Push, now: float) -> list[Action]:
        self.round.push(push.worker)
        self.balancer.pushed(push, max(0.0, now - self._granted[push.worker] - push.seconds))
        return [Accept(push, self.weight_of(push)), *self._commit_if_complete(now)]

    def _commit_if_complete(self, now: float) -> list[Action]:
        if not self.round.complete:
            return []
        if not self.round.led:  # else some workers have no measurement yet
            self.sizes = self.balancer.sizes(
                {worker: self.sizes[worker] for worker in sorted(self.active)})
        self.round.restart()
        self._sum = sum(self.sizes.values())
        due = sorted(self.round.missing)
        self._granted.update(dict.fromkeys(due, now))
        return [Commit(), *map(self._direct, due), *map(Grant, due)]

    def _direct(self, worker: int) -> Direct:
        """Return the Direct with the worker's size and its start in the shared stream, if any."""
        size = self.sizes[worker]
        if not self.rule.shared:
            return Direct(worker, batch=size)
        start = self._position
        self._position += size
        return Direct(worker, batch=size, start=start)
