"""The flags of a server, for `python -m wbsp.ps` and for launchers, and their configuration."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from absl import flags

from wbsp import timeouts, units
from wbsp.core.outer_optimizer import OUTER_OPTIMIZERS, outer_of
from wbsp.environment import TRANSPORTS, server_address, shares_memory, token_of_server
from wbsp.process.own_address import address_for_others
from wbsp.ps.checkpoint.resume import resume_flag
from wbsp.ps.config import ServerConfig, ShardPlan
from wbsp.runlog.reach import Reach
from wbsp.sync import MODELS, SyncModel, parse_options
from wbsp.tensors.codecs import KNOWN, parse
from wbsp.wire.addresses import all_here, only_here, own_address

FLAGS = flags.FLAGS
flags.disclaim_key_flags()  # they are flags of the module that defines them by `define_flags`


def define_flags(sync: str | None = "pcc", sync_default: str = "", of_server: str = "",
                 of_both: str = "", others: str = "--shard") -> None:
    """Define the flags that every process of a server has.

    Args:
        sync: the default model.
        sync_default: text about the default in its help.
        of_server: suffix of the help of flags of a server.
        of_both: suffix of the help of flags of a server and its standby.
        others: the flag that makes a process a shard.
    """
    flags.DEFINE_string("sync", sync, f"synchronization model: {', '.join(MODELS)}, or "
                        f"module:Class of your own{sync_default} (pcc: optimized WBSP)")
    flags.DEFINE_multi_string("sync_option", [], "key=value: an option of the synchronization "
                              "model")
    flags.DEFINE_enum("outer", None, list(OUTER_OPTIMIZERS), "step from the sum of a version's "
                      "updates to the version; default: the model's own, mostly identity"
                      f"{of_server}")
    flags.DEFINE_multi_string("outer_option", [], "key=value: an option of the outer step"
                              f"{of_server}")
    flags.DEFINE_string("wire", None, f"format of updates and versions on the wire: {KNOWN}; "
                        f"default: the model's own, mostly float32{of_both}")
    flags.DEFINE_string("log_root", "runs", "folder for the files of runs")
    flags.DEFINE_flag(resume_flag(of_server))
    flags.DEFINE_string("standby_of", None, "host:port of a server that this one replaces when "
                        "that is lost; all other flags except the port must be equal")
    flags.DEFINE_string("shards", "1", "number of processes that share the model's floats, or the "
                        f"addresses, host:port,host:port, of processes started with {others}"
                        f"{of_both}")
    flags.DEFINE_string("until", None, "end the run after this time of training: 300s, 10min, 2h"
                        f"{of_both}")
    flags.DEFINE_bool("fail_if_lost", False, "end with code 1, not 0, if a worker was lost and "
                      f"did not reconnect{of_both}")
    flags.DEFINE_float("connect_timeout", timeouts.CONNECT, "seconds to wait for workers and, "
                       "before the first run, for the shards of --shards and the server of "
                       f"--standby_of{of_both}" + ("; for the server (worker)" if of_both else ""),
                       lower_bound=0)
    flags.DEFINE_float("band_width_limit", None, "MB/s in each direction for this process's "
                       "traffic")
    flags.register_validator(  # type: ignore[no-untyped-call]
        "band_width_limit", lambda limit: limit is None or limit > 0, "it must be above 0 MB/s")
    flags.DEFINE_enum("transport", None, TRANSPORTS, "tcp: share no memory between server and "
                      "workers of one machine; auto: share it with processes of this user; "
                      "default: the environment variable WBSP_TRANSPORT, else auto")
    flags.DEFINE_string("token_file", None, "file with a shared secret, which encrypts all "
                        "traffic and excludes other processes; default: the environment "
                        "variable WBSP_TOKEN_FILE, else ~/.config/wbsp/token where other machines "
                        "can connect, which is made once; empty: none")


def bandwidth() -> float | None:
    """Return the limit in bytes/s of each direction, or None."""
    limit: float | None = FLAGS.band_width_limit
    return limit and 1e6 * limit


def until() -> float:
    """Seconds of training after which a run ends. Raises ValueError in one line."""
    seconds = units.of_flag("until", FLAGS.until, units.seconds)
    if seconds is None:
        return math.inf
    if not seconds:
        raise ValueError(f"--until={FLAGS.until}: it must be above 0")
    return seconds


def server_config(workers: int, model: type[SyncModel], host: str, port: int,
                  start_worker: str = "python train.py", **more: Any) -> ServerConfig:
    """Return the configuration of the flags.

    Args:
        workers: number of workers.
        model: class of the synchronization model.
        host, port: to listen on.
        start_worker: the command that starts a worker, for users.
        **more: fields of the configuration that flags do not set.

    Raises:
        ValueError: a flag is bad; one line.
        OSError: a file cannot be read, or the token cannot be made; one line.
    """
    config = ServerConfig(
        workers, host=host, port=port,
        check_period=FLAGS.check_period, connect_timeout=FLAGS.connect_timeout,
        bandwidth=bandwidth(), share=shares_memory(FLAGS.transport),
        outer=outer_of(model, workers, FLAGS.outer, parse_options(FLAGS.outer_option)),
        wire=parse(FLAGS.wire or model.wire), fail_if_lost=FLAGS.fail_if_lost,
        log_root=FLAGS.log_root, resume=FLAGS.resume, standby_of=FLAGS.standby_of,
        shards=ShardPlan.parse(FLAGS.shards), until=until(), **more)
    reach = reach_of(host, port)  # the flags are good, so a token may be made
    return replace(config, token=reach.token,
                   reach=reach.of_token() + reach.of_server(start_worker))


def shard_of_flags(host: str, port: int) -> Callable[[], int]:
    """Return a function that waits for servers there, as a shard, and returns an exit code.

    Raises:
        ValueError: a flag is bad; one line.
        OSError: the port or the token's file cannot be used; one line.
    """
    from wbsp.ps.sharding.process import prepare_shard  # which --help does without

    host, limit = own_address(host), bandwidth()
    reach = reach_of(host, port)
    return prepare_shard(host, port, reach.token, limit,
                         reach=[*reach.of_token(), *reach.of_shard()])


def reach_of(host: str, port: int) -> Reach:
    """Return who can reach a process that listens there, with its token, made if necessary.

    Raises:
        ValueError: the token is too short; one line.
        OSError: it cannot be read or made; one line.
    """
    beyond = not only_here(host)
    where = address_for_others(host)
    address = f"[{where}]:{port}" if ":" in where else f"{where}:{port}"
    if host == "*":  # perhaps because of the address in the environment
        with contextlib.suppress(ValueError):
            said = server_address("ps")
            if said is not None and said.text.endswith(f":{port}") and not all_here(said.text):
                address = said.text
    return Reach(beyond, address, *token_of_server(FLAGS.token_file, beyond))
