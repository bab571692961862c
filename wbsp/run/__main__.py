"""`wbsp run --workers=2 train.py`: a server and workers on this machine, from start to end."""

from __future__ import annotations

import os
import sys

from absl import flags

import wbsp.ps.__main__ as ps
from wbsp import command
from wbsp.process.ports import free_port
from wbsp.process.streams import open_streams
from wbsp.run import machine
from wbsp.run.arguments import Words, split
from wbsp.run.log import ServerLines
from wbsp.run.supervisor import Command, Member, Supervisor
from wbsp.wire.addresses import is_loopback, split_addresses

FLAGS = flags.FLAGS
OWN = "workers", "max_restarts", "server"
WITH_SERVER = "token_file", "transport"  # flags of the server that workers elsewhere need, too
REFUSED = {"shard": "starts a shard", "standby_of": "starts a standby"}

flags.DEFINE_integer("workers", None, "number of workers on this machine; default: one for each "
                     "GPU that it shows", lower_bound=1)
flags.DEFINE_integer("max_restarts", 5, "restarts in a row, each after less than a minute, of a "
                     "process that was killed", lower_bound=0)
flags.DEFINE_string("server", None, "HOST:PORT of a server elsewhere, whose run these workers "
                    "join; it gives them their indices")

USAGE = """\
usage: wbsp run [FLAG ...] train.py [ARGUMENT ...]
       wbsp run [FLAG ...] -m MODULE [ARGUMENT ...]

Trains your script on this machine: starts the server and the workers, restarts those that are
killed, and leaves no process. The script runs as `python train.py ARGUMENT ...` in each worker.
Flags are written --name=value. Those after the script are the script's.

  wbsp run --workers=2 train.py --rate=0.1
  wbsp run --workers=4 --sync=auto --target=accuracy:0.9 train.py
  wbsp run --workers=2 --server=other-machine:2606 train.py
"""


def main(words: list[str]) -> int:
    """Train; return the exit code, of the first process that did not end well or 0."""
    try:
        said = split(words, FLAGS, OWN)
        FLAGS([sys.argv[0], *said.flags])
    except flags.Error as error:
        return _refuse(command.said(str(error)), 2)
    except ValueError as error:
        return _refuse(error, 2)
    if said.help:
        if "--helpxml" in words:
            FLAGS.write_help_in_xml_format(sys.stdout)
        else:
            print(_help())
        return 0
    try:
        return _supervisor(said).run()
    except (ValueError, OSError) as error:
        return _refuse(error, 1)


def _refuse(error: Exception | str, code: int) -> int:
    print(f"wbsp run: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _supervisor(said: Words) -> Supervisor:
    """Return the supervisor of the run that the flags describe.

    Raises:
        ValueError: a flag is wrong or missing; one line.
    """
    if said.script[0] != "-m" and not os.path.exists(said.script[0]):
        raise ValueError(f"the script {said.script[0]} does not exist")
    for name, what in REFUSED.items():
        if FLAGS[name].present:
            raise ValueError(f"--{name} {what}: use wbsp ps for that")
    gpus = machine.visible_gpus(os.environ)
    workers = FLAGS.workers or len(gpus)
    if not workers:
        raise ValueError("--workers is missing, and this machine shows no GPU, which would get a "
                         "worker each: give the number of workers, such as --workers=2")
    task, server, log = _elsewhere(said) if FLAGS.server else _server(said, workers)
    alone = server is not None and (FLAGS.worker_num or workers) == workers

    def worker(number: int) -> Member:
        # Else the server gives the indices, because workers elsewhere need some, too.
        own = {"WBSP_WORKER_INDEX": str(number)} if alone else {}
        how = Command([sys.executable, *said.script],
                      machine.of_worker(number, workers, gpus, os.environ) | task | own)
        return Member(f"{'worker' if alone else 'process'} {number}", lambda again: how,
                      FLAGS.max_restarts)

    supervisor = Supervisor(server, log, [worker(number) for number in range(workers)], alone)
    share = machine.share(workers)
    supervisor.say(f"{_count(workers, 'worker')} with {_count(share, 'core')} each; the server is "
                   f"{task['WBSP_SERVER']}")
    if gpus and workers > len(gpus):
        supervisor.say(f"{workers} workers share {_count(len(gpus), 'GPU')}, in turn: " + ", ".join(
            f"worker {number} has GPU {gpus[number % len(gpus)]}" for number in range(workers)))
    return supervisor


def _elsewhere(said: Words) -> tuple[dict[str, str], None, ServerLines]:
    """Return the task of workers whose server runs elsewhere.

    Raises:
        ValueError: a flag is wrong; one line.
    """
    try:
        split_addresses(FLAGS.server)
    except ValueError as error:
        raise ValueError(f"--server={FLAGS.server}: {error}") from None
    for word in said.server:
        name = word.lstrip("-").partition("=")[0]
        if word.startswith("-") and name not in WITH_SERVER:
            raise ValueError(f"--{name} is a flag of the server, which --server={FLAGS.server} "
                             "names as one that runs elsewhere; give it there")
    return {"WBSP_SERVER": FLAGS.server} | _access(), None, ServerLines()


def _server(said: Words, workers: int) -> tuple[dict[str, str], Member, ServerLines]:
    """Return the workers' task, without their indices, and their server.

    Raises:
        ValueError: a flag is wrong; one line.
    """
    everyone = FLAGS.worker_num or workers
    if everyone < workers:
        raise ValueError(f"--worker_num={everyone} counts all workers of the run, and --workers="
                         f"{workers} of them are on this machine: give at least {workers}")
    host = FLAGS.host or "localhost"
    everywhere = host in ("*", "0.0.0.0", "::", "[::]")
    here = "localhost" if everywhere or is_loopback(host) else host
    port = FLAGS.port_base or free_port("127.0.0.1" if here == "localhost" else here)
    log = ServerLines()
    words = [sys.executable, "-m", "wbsp.ps", *said.server, f"--worker_num={everyone}",
             f"--host={host}", f"--port_base={port}"]
    own = machine.without_task(os.environ) | {"PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}

    def start(again: bool) -> Command:
        return Command([*words, log.resume] if again else words, own)

    task = {"WBSP_SERVER": f"{here}:{port}", "WBSP_WORKER_NUM": str(everyone)} | _access()
    return task, Member("server", start, FLAGS.max_restarts, log.hear), log


def _access() -> dict[str, str]:
    """Return what the flags say of the way to the server, as variables of a worker."""
    return {name: value for name, value in {"WBSP_TOKEN_FILE": FLAGS.token_file,
                                            "WBSP_TRANSPORT": FLAGS.transport}.items()
            if value is not None}


def _help() -> str:
    server = {f"{heading}, flags of the server": [one for one in names if one not in REFUSED]
              for heading, names in ps.GROUPS.items()}
    return "\n".join([USAGE.rstrip("\n"), *command.grouped({"flags of wbsp run": OWN, **server})])


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


if __name__ == "__main__":
    open_streams()
    sys.exit(main(sys.argv[1:]))
