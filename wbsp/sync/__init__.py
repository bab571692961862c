"""Synchronization models by name: one published system a file.

>>> create("ssp", s=3).s
3
"""

from wbsp.sync.adsp import ADSP
from wbsp.sync.asp import ASP
from wbsp.sync.base import (
    Accept,
    Action,
    Commit,
    Direct,
    Grant,
    Option,
    Push,
    Reject,
    SyncModel,
    WorkerRule,
)
from wbsp.sync.bsp import BSP
from wbsp.sync.dssp import DSSP
from wbsp.sync.elasticbsp import ElasticBSP
from wbsp.sync.esync import ESync
from wbsp.sync.ksync import KSync
from wbsp.sync.lbbsp import LBBSP
from wbsp.sync.localsgd import LocalSGD
from wbsp.sync.nbsync import NBSync
from wbsp.sync.saps import SaPS
from wbsp.sync.ssp import SSP
from wbsp.sync.wbsp import WBSP, OptimizedWBSP

MODELS: dict[str, type[SyncModel]] = {m.name: m for m in (
    BSP, ASP, SSP, WBSP, OptimizedWBSP, DSSP, ADSP, LBBSP, NBSync, ElasticBSP, SaPS, ESync,
    LocalSGD, KSync)}

__all__ = ["MODELS", "Accept", "Action", "Commit", "Direct", "Grant", "Option", "Push", "Reject",
           "SyncModel", "WorkerRule", "create"]


def create(name: str, **options) -> SyncModel:
    """Return a new model by its name in `MODELS`, with its options (text or Python values).

    Raises ValueError, in one line, for an unknown name, an unknown option or a bad value.
    """
    if name not in MODELS:
        raise ValueError(f"unknown synchronization model {name!r}; known: {', '.join(MODELS)}")
    return MODELS[name](**options)


def parse_options(pairs: list[str]) -> dict[str, str]:
    """["s=3", "lazy=true"] -> {"s": "3", "lazy": "true"}. Raises ValueError, in one line."""
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"synchronization option {pair!r} is not of the form key=value")
        options[key] = value
    return options
