"""List the kinds of runs that the command plays in turn, each with as many seeds as the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simulated import plan, series_world, site_world
from simulated.cluster import Cluster


class Kind(NamedTuple):
    """Attributes:
        draws: (model, seed, data, sparse) -> a plan; the last two are None if the seed decides.
        plays: (plan, seed, folder, loud), with `run`, `world`, and `notes` of what happened.
        plan: type of its plans.
    """

    draws: Callable
    plays: type
    plan: type


def _of_servers(**drawn):
    def draws(model, seed, data, sparse):
        return plan.drawn(model, seed, data=data, sparse=sparse, **drawn)
    return Kind(draws, Cluster, plan.Plan)


KINDS = {
    "standby": _of_servers(standby=True),
    "shards": _of_servers(shards=True),
    "sites": Kind(lambda model, seed, data, sparse: site_world.drawn(seed, data),
                  site_world.Sites, site_world.SitesPlan),
    "series": Kind(lambda model, seed, data, sparse: series_world.drawn(model, seed),
                   series_world.Series, series_world.SeriesPlan),
    "any": _of_servers(),  # most with a server alone
}
TURNS = "standby", "shards", "sites", "series"  # which are played unless others are named


def player(plan):
    """Return what plays this plan."""
    return next(kind.plays for kind in KINDS.values() if kind.plan is type(plan))


def name_of(plan):
    """Return the first kind that has such plans."""
    return next(name for name, kind in KINDS.items() if kind.plan is type(plan))
