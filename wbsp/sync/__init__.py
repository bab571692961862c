"""Synchronization models by name: one published system a file.

>>> create("ssp", s=3).s
3
"""

from __future__ import annotations

import difflib
from typing import Any

from wbsp.sync.adsp import ADSP
from wbsp.sync.asp import ASP
from wbsp.sync.auto import Auto
from wbsp.sync.base import (
    Accept,
    Action,
    Commit,
    ContractError,
    Direct,
    Grant,
    Option,
    Push,
    Reject,
    SyncModel,
    WorkerRule,
)
from wbsp.sync.bsp import BSP
from wbsp.sync.decoupled import DecoupledDiLoCo
from wbsp.sync.dssp import DSSP
from wbsp.sync.elasticbsp import ElasticBSP
from wbsp.sync.esync import ESync
from wbsp.sync.fedasync import FedAsync
from wbsp.sync.ksync import KSync
from wbsp.sync.lbbsp import LBBSP
from wbsp.sync.localsgd import LocalSGD
from wbsp.sync.msync import MSync
from wbsp.sync.nbsync import NBSync
from wbsp.sync.own import check_own, import_model
from wbsp.sync.rennala import Rennala
from wbsp.sync.ringmaster import Ringmaster
from wbsp.sync.round import Round
from wbsp.sync.saps import SaPS
from wbsp.sync.ssp import SSP
from wbsp.sync.wbsp import WBSP, OptimizedWBSP

MODELS: dict[str, type[SyncModel]] = {m.name: m for m in (
    BSP, ASP, SSP, WBSP, OptimizedWBSP, DSSP, ADSP, LBBSP, NBSync, ElasticBSP, SaPS, ESync,
    LocalSGD, FedAsync, KSync, Rennala, Ringmaster, MSync, DecoupledDiLoCo, Auto)}

__all__ = ["MODELS", "Accept", "Action", "Commit", "ContractError", "Direct", "Grant", "Option",
           "Push", "Reject", "Round", "SyncModel", "WorkerRule", "create", "find",
           "parse_options", "with_batch_size"]


def find(name: str) -> type[SyncModel]:
    """Return the class of a model.

    Args:
        name: a name in `MODELS`, or `module:Class` for a class of your own.

    Raises:
        ValueError: the model does not exist, or is not valid; one line.
    """
    if name in MODELS:
        return MODELS[name]
    if ":" not in name:
        near = difflib.get_close_matches(name.lower(), MODELS, 1, 0.5)
        raise ValueError(f"unknown synchronization model {name!r}; "
                         + (f"did you mean {near[0]}? " if near else "")
                         + f"known: {', '.join(MODELS)}, or module:Class of your own")
    known, _, option = name.partition(":")
    if known in MODELS:
        raise ValueError(f"synchronization model {name!r}: option {option!r} of {known} is not of "
                         "the form key=value")
    model = import_model(name)
    if MODELS.get(model.name, model) is not model:
        raise ValueError(f"synchronization model {name!r}: the name {model.name!r} belongs to a "
                         "model of wbsp; give the class another one")
    return model


def create(name: str, **options: object) -> SyncModel:
    """Return a new model.

    Args:
        name: a name in `MODELS`, or `module:Class`; see `find`.
        **options: the model's options, as text or as Python values.

    Raises:
        ValueError: the name or an option is unknown, a value is bad, or a model of your own is not
            valid; one line.
    """
    model = find(name)(**options)
    if type(model).name not in MODELS:
        check_own(name, model)
    return model


def with_batch_size(model: type[SyncModel], batch_size: Any, options: dict[str, Any]
                    ) -> dict[str, Any]:
    """Return `options`, with `batch_size` as the default of the model's number `batch`, if any."""
    option = model.OPTIONS.get("batch")
    sized = option is not None and isinstance(option.default, int)
    return {"batch": batch_size, **options} if sized else options


def parse_options(pairs: list[str]) -> dict[str, str]:
    """Parse options of the form key=value.

    Args:
        pairs: for example ["s=3", "refresh=push"].

    Returns:
        For example {"s": "3", "refresh": "push"}.

    Raises:
        ValueError: a text is not of the form key=value; one line.
    """
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"synchronization option {pair!r} is not of the form key=value")
        options[key] = value
    return options
