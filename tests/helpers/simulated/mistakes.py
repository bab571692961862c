"""Processes that a person has started wrongly during a sound run: each prints in one line why it
cannot take part, and ends; the run is not affected.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass

from simulated.plan import PORT
from wbsp.access import Access
from wbsp.ps.config import ServerConfig, ShardPlan
from wbsp.ps.launch import prepare_server
from wbsp.sync import create
from wbsp.wire.errors import TransportError
from wbsp.worker.comm.transport import Transport

OTHER_TOKEN = b"another secret, which is as long"


@dataclass(frozen=True)
class Mistake:
    """Attributes:
        main: (cluster, process) -> what the process does; it returns an exit code.
        says: words of the line that gives the reason.
        fits: plans in which a person could make the mistake.
    """

    name: str
    main: Callable
    says: str
    fits: Callable = lambda plan: True


def _worker(index=0, expected=None, token=None, where=None):
    def make(cluster, process):
        def main():
            number = index(cluster.plan) if callable(index) else index
            transport = Transport(
                Access(where or cluster.address, token=token or cluster.token, share=False),
                number, lambda line: cluster.say(f"{process.name}: {line}"), on=process.host)
            try:
                transport.hello(expected or {}, 60.0)
            except TransportError as error:
                cluster.say(f"{process.name}: {error}")
                return 1
            finally:
                if process.alive:
                    transport.close()
            return 0
        return main
    return make


def _server(standby_of=None, shards=None, token=None, sync=None, workers=0):
    def make(cluster, process):
        plan = cluster.plan
        if sync is not None:
            plan = dataclasses.replace(plan, sync="bsp" if plan.sync == sync else sync, options={})

        def main():
            model = create(plan.sync, **plan.options)
            settings = {"sync": model.name, "sync_option": json.dumps(plan.options)}
            try:
                serve = prepare_server(settings, model, ServerConfig(
                    plan.workers + workers, check_period=plan.period, share=False,
                    wire=cluster.wire, connect_timeout=60.0, host=process.name, port=PORT,
                    token=token or cluster.token,
                    base_dir=plan.sync, log_root=f"/{process.name}",
                    standby_of=standby_of and standby_of.format(process.name),
                    shards=ShardPlan.parse(shards(plan) if shards else "1")), on=process.host)
            except (ValueError, OSError) as error:
                cluster.say(f"{process.name}: {error}")
                return 1
            return serve()
        return main
    return make


def _shards_of(plan):
    return ",".join(f"s{index}:{PORT}" for index in range(plan.shards))


_SHARDED = {"fits": lambda plan: plan.shards > 0}
_SERVER = f"server:{PORT}"

MISTAKES = [
    Mistake("a worker with another token", _worker(token=OTHER_TOKEN), "token"),
    Mistake("a worker too many", _worker(index=lambda plan: plan.workers), "does not exist"),
    Mistake("a worker with other settings", _worker(expected={"sync": "none"}), "disagree"),
    Mistake("a worker of a shard", _worker(where=f"s0:{PORT}"), "is a shard", **_SHARDED),
    Mistake("a standby with another token", _server(_SERVER, token=OTHER_TOKEN), "token"),
    Mistake("a standby of fewer workers", _server(_SERVER, workers=-1), "disagree"),
    Mistake("a standby of another model", _server(_SERVER, sync="asp"), "disagree"),
    Mistake("a standby of itself", _server(f"{{}}:{PORT}"), "of this process itself"),
    Mistake("a standby of a shard", _server(f"s0:{PORT}"), "is a shard", **_SHARDED),
    Mistake("a server whose shard is a server", _server(shards=lambda plan: f"{_SERVER},m9:{PORT}"),
            "not a shard"),
    Mistake("a server of another run's shards", _server(shards=_shards_of), "follows the server",
            **_SHARDED),
    Mistake("a server with another token than its shards", _server(
        shards=_shards_of, token=OTHER_TOKEN), "token", **_SHARDED),
]
