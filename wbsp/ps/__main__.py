"""`wbsp ps`: the server, which holds the versions of a model.

It needs neither model code nor TensorFlow: the first worker to join sends the initial model.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from absl import flags

from wbsp.command import own_flags, run
from wbsp.core.goal import Goal
from wbsp.environment import worker_num
from wbsp.process.files import check_files
from wbsp.process.streams import open_streams
from wbsp.ps.flags import define_flags, server_config, shard_of_flags
from wbsp.sync import create, parse_options

if TYPE_CHECKING:
    from wbsp.process.host import Host
    from wbsp.ps.config import Above, Reporter

FLAGS = flags.FLAGS
SHARD_PORT = 2706
ABOUT = ("Serve the versions of a model to its workers. The server needs neither their code nor "
         "their data: the first worker to join sends the model.")
OF_SHARDS = "shard", "host", "port_base", "token_file", "band_width_limit"
GROUPS = {
    "run": ["worker_num", "sync", "sync_option", "outer", "outer_option", "check_period"],
    "network": ["host", "port_base", "token_file", "wire", "transport", "band_width_limit",
                "connect_timeout"],
    "end": ["epochs", "max_steps", "until", "target", "best", "best_patience", "one_run",
            "fail_if_lost"],
    "files": ["base_dir", "log_root", "resume"],
    "several servers": ["standby_of", "shards", "shard", "upstream", "site",
                        "upstream_token_file"]}

define_flags()
flags.DEFINE_integer("worker_num", None, "number of workers; default: the environment variable "
                     "WBSP_WORKER_NUM, or TF_CONFIG's", lower_bound=1)
flags.DEFINE_string("host", None, "address to listen on; 0.0.0.0, or * for IPv6, too: every "
                    "interface, so that other machines can connect; default, without --port_base: "
                    "that of WBSP_SERVER or TF_CONFIG, else localhost, this machine only")
flags.DEFINE_integer("port_base", None, "port to listen on; default: that of WBSP_SERVER or "
                     "TF_CONFIG, else 2606", lower_bound=1, upper_bound=65535)
flags.DEFINE_string("base_dir", None, "folder of the runs' files; relative: below --log_root; "
                    "default: the synchronization model's name")
flags.DEFINE_bool("shard", False, "run a shard: wait for a server with this process in --shards")
flags.DEFINE_bool("one_run", False, "end with the first run; default: serve a run for each `fit` "
                  "of the workers, until their processes have ended")
flags.DEFINE_string("upstream", None, "host:port of a server above, of which this server, a site, "
                    "is one worker; it supplies W_0 and ends the run")
flags.DEFINE_integer("site", None, "index of this site among the workers of --upstream, from 0 on",
                     lower_bound=0)
flags.DEFINE_string("upstream_token_file", None, "file with the secret between this site and "
                    "--upstream; default: the environment variable WBSP_UPSTREAM_TOKEN_FILE, else "
                    "~/.config/wbsp/token if that is another machine")
flags.DEFINE_integer("epochs", None, "passes of all workers together over the data that they share "
                     "(hook.examples); default: the epochs of their fit", lower_bound=1,
                     upper_bound=8000)
flags.DEFINE_integer("max_steps", None, "end the run after this number of "
                     "steps of all workers together",
                     lower_bound=1)
flags.DEFINE_float("check_period", 5.0, "seconds between two checkpoints", lower_bound=0.01)
flags.DEFINE_string("target", None, "METRIC:VALUE, such as accuracy:0.9: end the run when a "
                    "process that evaluates its versions (wbsp.versions) reports that; "
                    "min:METRIC:VALUE where less is better and the name does not show it")
flags.DEFINE_string("best", None, "METRIC: keep the best version by it, of those that were "
                    "evaluated; min:METRIC where less is better and the name does not show it; "
                    "default: the metric of --target")
flags.DEFINE_integer("best_patience", None, "end the run after this many evaluations in a row "
                     "without a better version by --best", lower_bound=1)


def main(argv: Sequence[str],
         above: Callable[[Host, Reporter], Above] | None = None) -> int:
    """Serve. `above`: as in `ServerConfig`, for a site."""
    # The server itself, which --help does without.
    from wbsp.ps.launch import prepare_server, where_to_listen

    try:
        check_files("a shard" if FLAGS.shard else "a server")
        if len(argv) > 1:
            raise ValueError(f"unknown argument {argv[1]!r}; flags are written --name=value")
        if FLAGS.upstream is not None and above is None:
            # Another program, made of the parts of a server and of a worker, goes on in this
            # process.
            os.execv(sys.executable, [sys.executable, "-m", "wbsp.site", *sys.argv[1:]])
        if above is None and (FLAGS.site is not None or FLAGS.upstream_token_file is not None):
            raise ValueError("--site and --upstream_token_file need the server above: give "
                             "--upstream=localhost:2606, for example")
        if FLAGS.shard:
            _check_shard()
            return shard_of_flags(FLAGS.host or "localhost", FLAGS.port_base or SHARD_PORT)()
        workers = worker_num() if FLAGS.worker_num is None else FLAGS.worker_num
        if workers is None:
            raise ValueError("the number of workers is unknown: set --worker_num=2, or the "
                             "environment variable WBSP_WORKER_NUM=2, or TF_CONFIG")
        host, port = where_to_listen(FLAGS.host, FLAGS.port_base, 2606)
        options = parse_options(FLAGS.sync_option)
        model = create(FLAGS.sync, **options)
        settings = {"sync": model.name, "sync_option": json.dumps(options, sort_keys=True)}
        if above is not None:
            settings |= {"upstream": FLAGS.upstream, "site": str(FLAGS.site)}
        return prepare_server(settings, model, server_config(
            workers, type(model), host=host, port=port, base_dir=FLAGS.base_dir or model.name,
            one_run=FLAGS.one_run, epochs=FLAGS.epochs,
            stop_steps=FLAGS.max_steps or math.inf,
            target=FLAGS.target and Goal.parse("target", FLAGS.target, valued=True),
            best=FLAGS.best and Goal.parse("best", FLAGS.best, valued=False),
            best_patience=FLAGS.best_patience, above=above))()
    except (ValueError, OSError) as error:
        print(f"wbsp.ps: {error}", file=sys.stderr)
        return 1


def _check_shard() -> None:
    """Raise ValueError, in one line, for a flag that a shard does not read."""
    for name in own_flags():
        if FLAGS[name].present and name not in OF_SHARDS:
            raise ValueError(f"--{name} has no effect on a shard, which has its settings from its "
                             f"server: give it to that one, and here {_listed(OF_SHARDS)} only")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"--{name}" for name in names)


if __name__ == "__main__":
    open_streams()
    run(main, "wbsp ps", ABOUT, GROUPS)
