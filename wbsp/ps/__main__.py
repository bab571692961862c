"""`python -m wbsp.ps`: a parameter server for any Keras model.

It needs neither model code nor TensorFlow: the first worker to join brings the initial model.
"""

import json
import sys

from absl import app, flags

from wbsp import timeouts
from wbsp.core.outer_optimizer import OUTER_OPTIMIZERS, create_outer
from wbsp.environment import TRANSPORTS, shares_memory, token, worker_num
from wbsp.ps.checkpoint.resume import resume_flag
from wbsp.ps.launch import prepare_server, where_to_listen
from wbsp.ps.server import ServerConfig
from wbsp.ps.sharding.process import prepare_shard
from wbsp.sync import create, known_models, parse_options
from wbsp.tensors.codecs import FLOAT32, KNOWN, parse

FLAGS = flags.FLAGS
SHARD_PORT = 2706

flags.DEFINE_integer("worker_num", None, "number of workers; default: the environment variable "
                     "WBSP_WORKER_NUM, or TF_CONFIG's", lower_bound=1)
flags.DEFINE_string("sync", "pcc", f"synchronization model: {', '.join(known_models())}, or "
                    "module:Class of your own (pcc: optimized WBSP)")
flags.DEFINE_multi_string("sync_option", [], "key=value: an option of the synchronization model")
flags.DEFINE_enum("outer", "identity", list(OUTER_OPTIMIZERS), "what a version makes of the sum "
                  "of its updates")
flags.DEFINE_string("wire", FLOAT32.name, "format of updates and versions on the wire: "
                    f"{KNOWN}")
flags.DEFINE_multi_string("outer_option", [], "key=value: an option of the outer step")
flags.DEFINE_string("host", None, "address to listen on; *: every interface; default, without "
                    "--port_base: what WBSP_SERVER or TF_CONFIG names, else localhost")
flags.DEFINE_integer("port_base", None, "port to listen on; default: likewise, else 2606",
                     lower_bound=1, upper_bound=65535)
flags.DEFINE_string("token_file", None, "file with a shared secret: encrypts, and keeps others "
                    "out; default: the environment variable WBSP_TOKEN_FILE")
flags.DEFINE_string("base_dir", None, "folder of the runs' files; relative: below --log_root; "
                    "default: the synchronization model's name")
flags.DEFINE_string("log_root", "runs", "where runs leave their files")
flags.DEFINE_flag(resume_flag())
flags.DEFINE_string("standby_of", None, "host:port of a server whose place this one takes when "
                    "that is gone; every other flag as there, but for the port")
flags.DEFINE_string("shards", "1", "how many processes share the model's floats, or the addresses, "
                    "host:port,host:port, of those that --shard has started")
flags.DEFINE_bool("shard", False, "be a shard: wait for a server whose --shards names this process")
flags.DEFINE_integer("watch_port", 0, "where `python -m wbsp.watch HOST:PORT` gets the run's "
                     "files; default: any free one", lower_bound=0, upper_bound=65535)
flags.DEFINE_float("check_period", 5.0, "seconds between two checkpoints", lower_bound=0.01)
flags.DEFINE_float("connect_timeout", timeouts.CONNECT, "seconds to wait for workers and, where no "
                   "run has begun yet, for the shards of --shards and the server of --standby_of",
                   lower_bound=0)
flags.DEFINE_bool("fail_if_lost", False, "end with code 1, not 0, where a worker was lost and did "
                  "not come back")
flags.DEFINE_float("band_width_limit", None, "MB/s in each direction for the server's traffic")
flags.DEFINE_enum("transport", None, TRANSPORTS, "tcp: share no memory with workers of this "
                  "machine; default: the environment variable WBSP_TRANSPORT, else auto: with all "
                  "of this user")


def main(argv):
    try:
        if len(argv) > 1:
            raise ValueError(f"unknown argument {argv[1]!r}; flags are written --name=value")
        bandwidth = FLAGS.band_width_limit and 1e6 * FLAGS.band_width_limit
        if FLAGS.shard:
            return prepare_shard(FLAGS.host or "localhost", FLAGS.port_base or SHARD_PORT,
                                 token(FLAGS.token_file), bandwidth)()
        workers = worker_num() if FLAGS.worker_num is None else FLAGS.worker_num
        if workers is None:
            raise ValueError("say how many workers there are: --worker_num=2, or the environment "
                             "variable WBSP_WORKER_NUM=2, or TF_CONFIG")
        host, port = where_to_listen(FLAGS.host, FLAGS.port_base, 2606)
        options = parse_options(FLAGS.sync_option)
        model = create(FLAGS.sync, **options)
        config = ServerConfig(workers, check_period=FLAGS.check_period,
                              connect_timeout=FLAGS.connect_timeout,
                              bandwidth=bandwidth, share=shares_memory(FLAGS.transport),
                              outer=create_outer(FLAGS.outer, **parse_options(FLAGS.outer_option)),
                              wire=parse(FLAGS.wire), fail_if_lost=FLAGS.fail_if_lost)
        settings = {"sync": model.name, "sync_option": json.dumps(options, sort_keys=True)}
        serve = prepare_server(
            settings, model, options, config, host=host, port=port,
            token_file=FLAGS.token_file, base_dir=FLAGS.base_dir or model.name,
            log_root=FLAGS.log_root, resume=FLAGS.resume, standby_of=FLAGS.standby_of,
            shards=FLAGS.shards, watch_port=FLAGS.watch_port)
        return serve()
    except (ValueError, OSError) as error:
        print(f"wbsp.ps: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    app.run(main)
