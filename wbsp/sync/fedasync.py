"""FedAsync: asynchronous federated optimization.

Source: Xie, Koyejo, Gupta, "Asynchronous federated optimization", OPT 2020, arXiv 1903.03934. Read:
the authors' public code, and descriptions of the paper by others, because its text was not at hand.
"""

from wbsp.sync.base import About, Accept, Action, Grant, Option, Push, SyncModel, WorkerRule


class FedAsync(SyncModel):
    """The server mixes each model into the newest version at once, the less the staler it is.

        worker: tau steps from W_b; push x - W_b; wait for the newest version; x = W
        server: lag = v - b, W_v the newest version; a = alpha s(lag)
                paper:  W_(v+1) = (1 - a) W_v + a x                 [from descriptions, code]
                here:   W_(v+1) = W_v + w (x - W_b): accept(p, w), commit, grant    [derived]

        s(lag), by `staleness` [code; the defaults of alpha, a and b from descriptions]:
            constant:    1
            polynomial:  (1 + lag)^-poly_a
            hinge:       1 up to lag hinge_b, beyond it 1 / (hinge_a (lag - hinge_b) + 1)

    Both lines are one where lag = 0. Otherwise they differ by what others have added since W_b:

        (1 - a) W_v + a x = W_v + a (x - W_b) - a (W_v - W_b)

    The mixing takes the share a of it back, and later mixings take back shares of this update. Here
    an accepted update counts with its weight for good, and no worker sends W_v - W_b, so the last
    term is not available. A weight replaces it:

        weight=settled:  w = a / (1 + a lag), the share of an update that remains after all of the
                         paper's mixings. With constant a and lag, W_v + a (W_(v-1) + ... +
                         W_(v-lag)) grows by a (x - W_b) at each version and by nothing else; after
                         the last update it is (1 + a lag) W [derived].
        weight=plain:    w = a, without the last term: a round of N equal workers moves W by N a
                         mean updates (8 workers, constant s: 4.8), more than many a learning
                         rate bears [derived].

    With unequal lags, `settled` differs from mixing in the workers' shares: under mixing the update
    of a slow worker removes part of the fast workers' progress, here it only weighs less.

    Differs from ASP in tau steps for one, and in the weight: with alpha = 1, constant s and equal
    workers, `settled` is ASP's 1/N. tau counts steps, and `polynomial` is the default [ours]. Left
    out are the paper's proximal term, rho / 2 |x - W_b|^2 in the loss of a worker, which is the
    optimizer's affair, and the one decay of alpha in the authors' code.
    """

    name = "fedasync"
    about = About(
        bound="none; the weight falls with the staleness",
        waits="no worker, except for its own push and fetch at every tau-th step",
        traffic="a push and a fetch for tau steps",
        source="Xie et al., OPT 2020",
        certainty="rule from the authors' code, defaults from descriptions; mixing replaced by an "
                  "addition: derived")
    OPTIONS = {
        "tau": Option(10, "steps between two pushes of a worker", low=1),
        "alpha": Option(0.6, "share of a fresh model in the next version", low=0, high=1),
        "staleness": Option("polynomial", "how the share falls with the lag",
                            choices=("constant", "polynomial", "hinge")),
        "poly_a": Option(0.5, "exponent (polynomial)", low=0),
        "hinge_a": Option(10.0, "steepness beyond hinge_b (hinge)", low=0),
        "hinge_b": Option(4.0, "lag up to which the share stays whole (hinge)", low=0),
        "weight": Option("settled", "of an update: what remains of the share after all mixings, or "
                         "the share itself", choices=("settled", "plain")),
    }

    tau: int
    alpha: float
    staleness: str
    poly_a: float
    hinge_a: float
    hinge_b: float
    weight: str

    def __init__(self, **options: object):
        super().__init__(**options)
        self.rule = WorkerRule(push="every_step", wait="model", adopt="replace", every=self.tau)

    def weight_of(self, push: Push) -> float:
        lag = self.lag(push)
        share = self.alpha * self._fresh(lag)
        return share / (1 + share * lag) if self.weight == "settled" else share

    def push(self, push: Push, now: float) -> list[Action]:
        return [Accept(push, self.weight_of(push)), self.next_version(), Grant(push.worker)]

    def _fresh(self, lag: int) -> float:
        """s(lag), 0..1."""
        if self.staleness == "polynomial":
            return float((1 + lag) ** -self.poly_a)
        if self.staleness == "hinge" and lag > self.hinge_b:
            return 1 / (self.hinge_a * (lag - self.hinge_b) + 1)
        return 1.0
