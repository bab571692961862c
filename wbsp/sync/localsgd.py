"""Local SGD, or federated averaging: average the models after tau steps (McMahan et al. 2017)."""

from wbsp.sync.base import About, Option, WorkerRule
from wbsp.sync.bsp import BSP


class LocalSGD(BSP):
    """BSP whose workers make `tau` steps between two averages.

        worker: tau steps; push; wait for the next version; x = W
        server: as BSP

    Differs from BSP in one number: W_{n+1} = W_n + mean_k(SGD_k^tau(W_n) - W_n), the mean of the
    workers' models, and tau = 1 is BSP. The others wait for a slow worker as long as under BSP, but
    only at every tau-th step.

    Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-efficient learning of
    deep networks from decentralized data", AISTATS 2017, arXiv 1602.05629 (FederatedAveraging with
    every client in every round) [paper]. There a client's weight is its number of examples and tau
    counts epochs; here all weights are equal, and tau counts steps [ours].
    """

    name = "localsgd"
    about = About(
        bound="no update is from before the newest version",
        waits="fast workers, for the slowest at every tau-th step",
        traffic="N pushes and N fetches a version of N tau steps",
        source="McMahan et al., AISTATS 2017",
        certainty="exact for all clients in every round; tau in steps and weight 1/N: ours")
    OPTIONS = {"tau": Option(8, "steps between two averages", low=1)}

    tau: int

    def __init__(self, **options: object):
        super().__init__(**options)
        self.rule = WorkerRule(push="every_step", wait="model", adopt="replace", every=self.tau)
