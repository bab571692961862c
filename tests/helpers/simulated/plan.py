"""Describe a simulated run and the faults that strike it: written out, or drawn by a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

PHASES = "begin", "last push", "farewell", "take-over", "rendezvous"
PORT = 2606
FORMATS = "float32", "int8", "topk:0.1"
TABLE = 9000  # floats of a model with sparse updates: enough for blocks of int8 in two shards
ABSENCES = "nap", "cut", "off"  # a worker that is off is one that is killed
PATIENT = 4.0  # seconds for which a server waits for a worker without a connection, and less
# What strikes at a phase. Who dies while it takes over, which it does between any two of its steps,
# may take the newest state with it: these are two deaths, and the run continues without that.
_AT_PHASES = "kill", "kill", "break", "sleep", "cut", "isolate"

# Options by which a model's workers and server speak otherwise, or other things happen in so few
# steps.
OPTIONS = {
    "asp": [{"overlap": True}, {"refresh": "published"}, {"weight": "time"}],
    "ssp": [{"s": 1}, {"s": 2, "refresh": "published"}],
    "wbsp": [{"commit": "every_push"}, {"trigger": "slowest"}, {"weight": "work"}],
    "pcc": [{"late": True}, {"commit": "every_push"}, {"trigger": "slowest"}, {"weight": "work"},
            {"weight": "time"}],
    "dssp": [{"s_l": 0, "s_u": 2}],
    "adsp": [{"period": 0.2}],
    "lbbsp": [{"controller": "gpu"}, {"controller": "federated", "tau": 2}, {"predictor": "last"}],
    "nbsync": [{"merge": "add"}, {"normalize": True}],
    "elasticbsp": [{"r": 2}],
    "saps": [{"policy": "reject", "s": 1.0}, {"scale": "inverse", "h": 0.5}],
    "localsgd": [{"tau": 2}],
    "fedasync": [{"tau": 1}, {"tau": 2, "staleness": "hinge", "hinge_b": 1.0},
                 {"tau": 2, "weight": "plain"}],
    "ksync": [{"b": 0}, {"b": 2}],
    "rennala": [{"s": 1}, {"s": 2}],
    "ringmaster": [{"r": 1}, {"r": 2, "weight": "mean"}],
    "msync": [{"s": 1.0}],
    "decoupled": [{"tau": 2}, {"tau": 1, "quorum": 1, "grace": 0.0}],
}


@dataclass
class Plan:
    """One run.

    Attributes:
        steps: of each worker, at most.
        size: floats of the model.
        sparse: each step moves a few rows, so that updates and versions travel as blocks.
        data: that all workers share: examples, examples of a batch, and epochs; None: each worker
            has its own data, and makes `steps`.
        validate: as in `SharedData`.
        period: seconds between two checkpoints.
        hours: of virtual time after which a run that has not ended counts as hanging.
    """

    sync: str = "pcc"
    options: dict = field(default_factory=dict)
    workers: int = 3
    steps: int = 12
    size: int = 12
    sparse: bool = False
    dense: float = 0.0  # chance that a step of a sparse run moves all rows
    uncounted: float = 0.0  # chance that a step of a worker with its own data has no example
    chunk: int = 0  # floats of a message; 0: as in production, where a model here is one
    outer: str = "identity"
    data: tuple[int, int, int] | None = None
    validate: str = "newest"
    wire: str = "float32"
    standby: bool = False
    shards: int = 0
    chosen: bool = False  # no process has an index: the server chooses
    memory: bool = False  # some processes stand on one machine, and share its memory
    period: float = 0.2
    hours: float = 1.0
    # Faults at times that the seed draws: how often
    kills: int = 0  # of a server or standby, which is started again
    power: bool = False  # its machine loses power, too
    outage: tuple[float, float] = (0.05, 3.0)  # seconds until it is started again
    kill_shards: int = 0
    kill_workers: int = 0
    leaves: int = 0  # of workers that a signal ends in good order, and that are started again
    cuts: int = 0  # of the network between two machines, one way or both
    isolations: int = 0  # of a server from all others
    breaks: int = 0  # of connections
    storm: float = 0.0  # chance that a message breaks its connection, eight times
    sleeps: int = 0  # of processes; the clock runs on
    naps: tuple[float, ...] = (0.2, 1.0, 3.0)  # seconds that cuts and sleeps last
    # A machine that is away for long: it naps, is out of reach, or has lost its power. Connections
    # to it end after a while.
    absences: int = 0  # of a server or standby
    worker_absences: int = 0
    away: tuple[float, ...] = (20.0, 30.0, 40.0)  # seconds that they last; a worker's, twice that
    hows: tuple[str, ...] = ABSENCES
    soon: int = 0  # deaths within seconds of another one's, at once perhaps
    # The server is out of reach until its standby acts alone, which dies as the server is back:
    # what that has heard of the standby last must prove nothing by then, by whatever clock.
    fences: int = 0
    # Faults for the whole run
    full: float = 0.0  # chance that a write to a disk fails
    slow: float = 0.002  # seconds that a sync of a disk takes
    drift: float = 0.0  # by how much clocks run faster or slower
    rates: tuple[float, float] | None = None  # of the server's clock, and of the standby's
    # Others who are there
    strangers: int = 0  # processes that know no secret, and send anything
    mistakes: int = 0  # processes that a person has started wrongly
    mistake: str = ""  # which, of `simulated.mistakes`; "": as drawn
    wild: float = 0.0  # chance that a pushed update is not finite, or huge
    readers: int = 0  # processes that evaluate versions: `wbsp.versions`
    kill_readers: int = 0
    validates: bool = False  # workers validate the epochs of shared data
    evaluator: str = ""  # "works", "hangs", "dies"; "": no evaluator
    latency: tuple[float, float] = (0.0001, 0.003)
    speeds: tuple[float, ...] = (0.01, 0.03, 0.1)  # seconds that a step takes, of each worker one
    # Faults at phases: (phase, what strikes, and perhaps whom: "sleep standby")
    aimed: tuple[tuple[str, str], ...] = ()
    pair: tuple[str, str] | None = None  # the machines of each cut
    victims: tuple[str, ...] = ()  # the processes that die or sleep; none: as drawn
    when_alone: bool = False  # deaths wait until the server serves without its standby

    @property
    def calm(self) -> bool:
        """Return whether no fault strikes this run; there may be strangers, and mistakes."""
        return not self.faults - {"strangers", "mistakes", "wild", "evaluator", "readers", "drift",
                                  "slow disk"} and not self.aimed

    @property
    def faults(self) -> set[str]:
        """Return the kinds of faults that this plan may bring."""
        kinds = {name for name in ("kills", "kill_shards", "kill_workers", "leaves", "cuts",
                                   "isolations", "breaks", "storm", "absences",
                                   "worker_absences", "soon", "fences",
                                   "sleeps", "full", "drift", "strangers", "mistakes", "wild",
                                   "evaluator", "readers", "kill_readers") if getattr(self, name)}
        return kinds | ({"power"} if self.power else set()) | (
            {"slow disk"} if self.slow > 0.05 else set())


def drawn(sync: str, seed: int, standby: bool | None = None, shards: bool | None = None,
          options: dict | None = None, data: bool | None = None,
          sparse: bool | None = None) -> Plan:
    """Return a plan with some kinds of faults, as the seed draws it.

    Args:
        data, sparse: whether its workers share data, and whether steps move a few rows; None: as
            drawn.
    """
    draw = random.Random(f"plan {sync} {seed}")

    def some(chance, most):
        return draw.randint(1, most) if draw.random() < chance else 0
    standby = draw.random() < 0.25 if standby is None else standby
    shards = draw.random() < 0.15 if shards is None else shards
    plan = Plan(sync, options or {}, workers=draw.choice([2, 3, 3, 4]),
                steps=draw.choice([4, 8, 12]),
                wire=draw.choice(["float32", "float32", *FORMATS[1:]]), standby=standby,
                shards=draw.choice([2, 2, 3]) if shards else 0,
                period=draw.choice([0.1, 0.2, 1.0]))
    plan.kills = some(0.5, 3)
    plan.power = draw.random() < 0.3
    plan.kill_shards = some(0.5, 2) if plan.shards else 0
    plan.kill_workers = some(0.2, 2)
    plan.cuts, plan.breaks, plan.sleeps = some(0.4, 2), some(0.4, 3), some(0.4, 2)
    plan.isolations = some(0.15, 2)
    plan.storm = draw.choice([0.01, 0.03]) if draw.random() < 0.2 else 0.0
    plan.full = 0.1 if draw.random() < 0.25 else 0.0
    plan.slow = draw.choice([0.0, 0.002, 0.02, 0.3]) if draw.random() < 0.4 else 0.002
    plan.drift = draw.choice([0.001, 0.02]) if draw.random() < 0.3 else 0.0
    if draw.random() < 0.4:
        phases = [*PHASES, *3 * ["take-over"]] if standby else [
            phase for phase in PHASES if phase != "take-over"]
        plan.aimed = tuple(
            (phase, draw.choice(_AT_PHASES))
            for phase in draw.choices(phases, k=draw.choice([1, 1, 2])))
        if "take-over" in dict(plan.aimed):
            plan.kills = max(plan.kills, 1)
    # What is sent as something else than it is has nothing to lend.
    plan.memory = not plan.shards and plan.wire == "float32" and draw.random() < 0.25
    plan.power &= not plan.memory  # with a server's machine some workers would die, too
    plan.strangers, plan.mistakes = some(0.08, 2), some(0.08, 2)
    plan.wild = 0.2 if draw.random() < 0.07 else 0.0
    plan.evaluator = draw.choice(["works", "hangs", "dies"]) if draw.random() < 0.08 else ""
    if options is None and sync in OPTIONS and draw.random() < 0.4:
        plan.options = draw.choice(OPTIONS[sync])
    # The last draws change nothing in plans without them.
    if draw.random() < 0.25 if data is None else data:
        plan.data = draw.choice([24, 45, 60]), draw.choice([4, 7]), draw.choice([1, 2, 3])
        plan.leaves = some(0.6, 2)
    if draw.random() < 0.15 if sparse is None else sparse:
        plan.sparse, plan.size = True, TABLE
        plan.outer = draw.choice(["identity", "identity", "nesterov"])
    # A worker that is cut off for long counts as dead, and its index goes to another process.
    cut = plan.cuts or plan.isolations or {"cut", "isolate"} & {one for _, one in plan.aimed}
    plan.chosen = draw.random() < 0.3 and not (cut or plan.memory or plan.strangers
                                               or plan.mistakes)
    _draw_more(plan, random.Random(f"more {sync} {seed}"))
    # Of a generator of their own: what is drawn above is the same without them.
    draw = random.Random(f"forms {sync} {seed}")
    if draw.random() < 0.15 and not plan.memory:
        plan.chunk = draw.choice([1000, 4000] if plan.sparse else [5, 7])
    if plan.sparse and draw.random() < 0.5:
        plan.dense = 0.3
    _draw_clocks(plan, random.Random(f"clocks {sync} {seed}"))
    if plan.data is None and random.Random(f"uncounted {sync} {seed}").random() < 0.15:
        plan.uncounted = 0.4
    _draw_readers(plan, random.Random(f"readers {sync} {seed}"))
    return plan


def _draw_readers(plan: Plan, draw: random.Random) -> None:
    """Draw which processes evaluate versions: separate ones, workers, or both."""
    if draw.random() < 0.1:
        plan.readers = draw.randint(1, 2)
        plan.kill_readers = draw.choice([0, 1, 2])
    if plan.data is not None and draw.random() < 0.3:
        plan.validates, plan.validate = True, draw.choice(["newest", "wait"])


def _draw_more(plan: Plan, draw: random.Random) -> None:
    """Draw from a separate generator: the plans without these faults stay the same."""
    if draw.random() < 0.3:
        plan.soon = draw.randint(1, 3)
        plan.kills = max(plan.kills, 1)
        plan.full = 0.0  # the log shows what two deaths have cost
    lasts = False
    if plan.standby and draw.random() < 0.8:
        lasts, plan.absences = True, draw.randint(1, 2)
        if draw.random() < 0.5:
            plan.breaks += 8
    if draw.random() < 0.2:
        lasts, plan.worker_absences = True, draw.randint(1, 2)
    if lasts:
        plan.chosen = False
        plan.steps, plan.speeds = draw.choice([20, 30]), draw.choice([(1.0, 3.0), (3.0,)])
        plan.data = plan.data and (plan.data[0] * 3, *plan.data[1:])


def _draw_clocks(plan: Plan, draw: random.Random) -> None:
    """Draw clocks of the two servers that run at unequal rates, and faults that test their proofs.

    The rates differ by less than `ELECTION` and `PROOF` do.
    """
    if plan.standby and not plan.memory and draw.random() < 0.1:
        rates = draw.uniform(0.9, 0.95), draw.uniform(1.05, 1.1)
        plan.rates = rates if draw.random() < 0.5 else rates[::-1]
        plan.fences, plan.chosen = 1, False
        plan.steps, plan.speeds = draw.choice([20, 30]), draw.choice([(0.3, 1.0), (1.0,)])
