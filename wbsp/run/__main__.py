"""`wbsp run --workers=2 train.py`: a server and workers on this machine, from start to end."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Sequence

from absl import flags

import wbsp.ps.__main__ as ps
from wbsp import command, environment, units
from wbsp.process.own_address import EVERY_INTERFACE
from wbsp.process.ports import free_port
from wbsp.process.private import kept_in_file
from wbsp.process.streams import open_streams
from wbsp.process.token import read_token
from wbsp.run import machine
from wbsp.run.arguments import Words, split
from wbsp.run.hosts import HERE, Host, Place, parse_hosts
from wbsp.run.log import ServerLines
from wbsp.run.member import Command, Member, name_of, workers_of
from wbsp.run.supervisor import Supervisor
from wbsp.wire.addresses import is_loopback, split_addresses

FLAGS = flags.FLAGS
OWN = "workers", "max_restarts", "server", "hosts"
WITH_SERVER = "token_file", "transport"  # flags of the server that workers elsewhere need, too
REFUSED = {"shard": "starts a shard", "standby_of": "starts a standby"}

flags.DEFINE_integer("workers", None, "number of workers on this machine; default: one for each "
                     "GPU that it shows", lower_bound=1)
flags.DEFINE_integer("max_restarts", 5, "restarts in a row, each after less than a minute, of a "
                     "process that was killed", lower_bound=0)
flags.DEFINE_string("hosts", None, "HOST:WORKERS,...: workers on machines that ssh reaches "
                    f"without a password, in the same folder and with the same Python; {HERE}: on "
                    "this one")
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
  wbsp run --hosts=localhost:1,old-machine:2 train.py
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
        with contextlib.ExitStack() as until_the_end:
            return _supervisor(said, until_the_end).run()
    except (ValueError, OSError) as error:
        return _refuse(error, 1)


def _refuse(error: Exception | str, code: int) -> int:
    print(f"wbsp run: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _supervisor(said: Words, until_the_end: contextlib.ExitStack) -> Supervisor:
    """Return the supervisor of the run that the flags describe.

    Raises:
        ValueError: a flag is wrong or missing; one line.
        OSError: a file cannot be read or made.
    """
    if said.script[0] != "-m" and not os.path.exists(said.script[0]):
        remedy = ("" if not os.path.basename(said.script[0]).startswith("python") else
                  ": give the script itself, which this Python runs")
        raise ValueError(f"the script {said.script[0]} does not exist{remedy}")
    for name, what in REFUSED.items():
        if FLAGS[name].present:
            raise ValueError(f"--{name} {what}: use wbsp ps for that")
    gpus = machine.visible_gpus(os.environ)
    places = _places(gpus, said.script)
    workers = sum(place.workers for place in places)
    token_file = None
    if any(place.name != HERE for place in places):
        token_file = _token_file(until_the_end)
    if FLAGS.server:
        task, server, log, everyone = *_elsewhere(said), 0
    else:
        everyone = FLAGS.worker_num or workers
        task, server, log = _server(said, workers, everyone, token_file)
    # Else the server gives the indices, because workers elsewhere need some, too.
    indexed = everyone == workers

    def host(place: Place, numbers: Sequence[int]) -> Host:
        return Host(place, lambda: {
            "place": place.name, "numbers": list(numbers), "indexed": indexed,
            "everyone": everyone, "names": names, "script": said.script, "token": secret,
            "max_restarts": FLAGS.max_restarts, "port": task["WBSP_SERVER"].rpartition(":")[2],
            "host": None if FLAGS.host in (None, *EVERY_INTERFACE) else FLAGS.host},
            FLAGS.max_restarts, numbers if indexed else ())

    secret = read_token(token_file).decode() if token_file else ""
    members: list[Member] = []
    lines = []
    first = 0
    for place in places:
        numbers = range(first, first := first + place.workers)
        if place.name == HERE:
            members += workers_of(numbers, indexed, said.script, task, gpus, FLAGS.max_restarts)
            lines += machine.shares(numbers, gpus)
        else:
            members.append(host(place, numbers))
    names = ["server", *(name_of(number, indexed) for number in range(workers)),
             *(member.name for member in members)]
    supervisor = Supervisor(server, log, members, indexed, names)
    for line in [f"the server is {task['WBSP_SERVER']}", *lines]:
        supervisor.say(line)
    return supervisor


def _places(gpus: Sequence[str], script: Sequence[str]) -> list[Place]:
    """Return the machines and their workers. Raises ValueError, in one line."""
    if FLAGS.hosts is not None:
        for name in "workers", "server":
            if FLAGS[name].present:
                raise ValueError(f"--{name} and --hosts do not go together: --hosts says how many "
                                 f"workers each machine has, this one as {HERE}:2")
        places = parse_hosts(FLAGS.hosts)
        if FLAGS.host and is_loopback(FLAGS.host) and any(place.name != HERE for place in places):
            raise ValueError(f"--host={FLAGS.host}: other machines cannot reach a server there; "
                             "give an address of this machine, or none")
        return places
    if not (workers := FLAGS.workers or len(gpus)):
        if any(word.startswith("--workers") for word in script):
            raise ValueError("--workers stands behind the script, and so is the script's: wbsp run "
                             f"--workers=2 {script[0]}")
        raise ValueError("--workers is missing, and this machine shows no GPU, which would get a "
                         "worker each: give the number of workers, such as --workers=2")
    return [Place(HERE, workers)]


def _token_file(until_the_end: contextlib.ExitStack) -> str:
    """Return the file with the token of a run on several machines: a new one, unless the user has
    chosen one."""
    if FLAGS.token_file or environment.token(None) is not None:
        return FLAGS.token_file or os.environ["WBSP_TOKEN_FILE"]
    return until_the_end.enter_context(kept_in_file(secrets.token_hex(32)))


def _elsewhere(said: Words) -> tuple[dict[str, str], None, ServerLines]:
    """Return the task of workers whose server runs elsewhere.

    Raises:
        ValueError: a flag is wrong; one line.
    """
    units.of_flag("server", FLAGS.server, split_addresses)
    for word in said.server:
        name = word.lstrip("-").partition("=")[0]
        if word.startswith("-") and name not in WITH_SERVER:
            raise ValueError(f"--{name} is a flag of the server, which --server={FLAGS.server} "
                             "names as one that runs elsewhere; give it there")
    return {"WBSP_SERVER": FLAGS.server} | _access(), None, ServerLines()


def _server(said: Words, workers: int, everyone: int,
            token_file: str | None) -> tuple[dict[str, str], Member, ServerLines]:
    """Return the task of this machine's workers, without their indices, and their server.

    Args:
        said: the command line.
        workers: that this command starts, here and elsewhere.
        everyone: all workers of the run.
        token_file: that a run on several machines has; None: it is on one.

    Raises:
        ValueError: a flag is wrong; one line.
    """
    if everyone < workers:
        raise ValueError(f"--worker_num={everyone} counts all workers of the run, of which this "
                         f"command starts {workers}: give at least {workers}")
    host = FLAGS.host or ("*" if token_file else "localhost")
    here = "localhost" if host in EVERY_INTERFACE or is_loopback(host) else host
    port = FLAGS.port_base or free_port("127.0.0.1" if here == "localhost" else here)
    log = ServerLines()
    words = [sys.executable, "-m", "wbsp.ps", *said.server, f"--worker_num={everyone}",
             f"--host={host}", f"--port_base={port}",
             *([f"--token_file={token_file}"] if token_file else [])]
    own = machine.without_task(os.environ) | {"PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}

    def start(again: bool) -> Command:
        return Command([*words, log.resume] if again else words, own)

    task = {"WBSP_SERVER": f"{here}:{port}", "WBSP_WORKER_NUM": str(everyone)} | _access()
    if token_file:
        task["WBSP_TOKEN_FILE"] = token_file
    return task, Member("server", start, FLAGS.max_restarts, log.hear), log


def _access() -> dict[str, str]:
    """Return the variables for a worker that hold the flags about the connection to the server."""
    return {name: value for name, value in {"WBSP_TOKEN_FILE": FLAGS.token_file,
                                            "WBSP_TRANSPORT": FLAGS.transport}.items()
            if value is not None}


def _help() -> str:
    server = {f"{heading}, flags of the server": [one for one in names if one not in REFUSED]
              for heading, names in ps.GROUPS.items()}
    return "\n".join([USAGE.rstrip("\n"), *command.grouped({"flags of wbsp run": OWN, **server})])


if __name__ == "__main__":
    open_streams()
    sys.exit(main(sys.argv[1:]))
