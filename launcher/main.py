"""From a command line to an exit code."""

import os
import pathlib
import sys

from launcher.flags import FLAGS, GROUPS, KEPT, refuse_what_has_no_effect
from launcher.server import parameter_server, shard
from launcher.worker import worker
from wbsp import command
from wbsp.process.streams import open_streams
from wbsp.runlog.console import say

ABOUT = ("Train the published experiment: one server and its workers, one process a job. Settings "
         "of the whole run are given to the server; workers adopt them.")


def run():
    open_streams()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    command.run(_main, pathlib.Path(sys.argv[0]).stem, ABOUT, GROUPS)


def _main(argv):
    program = pathlib.Path(argv[0]).stem
    try:
        if len(argv) > 1:
            raise ValueError(f"unknown argument {argv[1]!r}; flags are written --name=value")
        for name in KEPT:
            if FLAGS[name].present:
                say(f"--{name} is kept for compatibility and has no effect")
        refuse_what_has_no_effect()
        match FLAGS.job_name:
            case "worker":
                train = worker(program)
            case "shard":
                return shard()()
            case _:
                return parameter_server()()
    except (ValueError, OSError, RuntimeError) as error:
        say(f"{program}: {error}")
        return 1
    return train()
