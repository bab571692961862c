"""Run a Slurm of three nodes on this machine, as root: for tests, or for a person to try commands.

    python tests/helpers/slurm.py --install    # Debian: apt-get; leave it out if Slurm is installed

The nodes n0, n1, n2 share this machine's address and cores. Each is configured with four cores and
two GPUs, which are no devices. It changes no service of the machine and none of its files in /etc.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jobs import free_port, until

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge"]
PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel"]
NODES = ["n0", "n1", "n2"]

CONFIG = """
ClusterName=wbsp
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
# a requeued job waits for a moment longer than its credentials are good (120 s)
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
# every step and pass of the scheduler at once
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# nodes have the resources given here, on any machine
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout={timeout}
KillWait=5
InactiveLimit=0
GresTypes=gpu
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing(apart: bool = False) -> str:
    """Return why Slurm cannot run here, or not with separate nodes; empty if it can."""
    if os.geteuid() != 0:
        return "starting a Slurm takes root"
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"no {absent[0]}: apt-get install {' '.join(PACKAGES)}"
    works = not apart or subprocess.run(["unshare", "--net", "--uts", "ip", "link", "add", "br0",
                                         "type", "bridge"], capture_output=True).returncode == 0
    return "" if works else "no namespaces of networks with bridges"


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


class Slurm(contextlib.AbstractContextManager):
    """The cluster; on exit its jobs and daemons are killed and its files are removed.

    Attributes:
        env: the environment in which Slurm's commands reach it.
    """

    def __init__(self, apart: bool = False):
        """Start the cluster; `apart`: each node has a separate address, host name and cable."""
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short, for munge's socket
        self.env = {**os.environ, "PATH": _path(), "SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen] = []
        self._hosts = Hosts(NODES) if apart else None
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise

    def _start(self) -> None:
        folder, hosts = self.folder, self._hosts
        folder.chmod(0o711)  # munge's clients must reach its socket
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        nodes = "".join(
            f"NodeName={node} NodeHostname={node if hosts else host} "
            f"NodeAddr={hosts.address(node) if hosts else '127.0.0.1'} Port={free_port()} CPUs=4 "
            f"RealMemory=1000 Gres=gpu:2 State=UNKNOWN\n" for node in NODES)
        config = CONFIG.format(host=host, port=free_port(), folder=folder,
                               address=hosts.HERE if hosts else "127.0.0.1",
                               timeout=5 if hosts else 60)
        (folder / "slurm.conf").write_text(config + nodes)
        (folder / "gres.conf").write_text("".join(
            f"NodeName={node} Name=gpu File={folder}/{node}-gpu[0-1]\n" for node in NODES))
        for node in NODES:
            for index in range(2):
                os.mknod(folder / f"{node}-gpu{index}", 0o20666, os.makedev(1, 3))
        self._daemon("munged", "--foreground", f"--key-file={key}", f"--socket={folder}/munge.sock",
                     f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log",
                     f"--seed-file={folder}/munged.seed")
        until((folder / "munge.sock").exists, "munged", 10)
        self._daemon(*self._at(None), "slurmctld", "-D")
        for node in NODES:
            self._daemon(*self._at(node), "slurmd", "-D", "-N", node)
        until(lambda: self.ask("sinfo", "--noheader", "--format=%t %D").split() == ["idle", "3"],
              "three idle nodes", 30)

    def _daemon(self, *command: str) -> None:
        with open(self.folder / f"daemon-{len(self._daemons)}.log", "wb") as file:
            self._daemons.append(subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True))

    def _at(self, node: str | None) -> list[str]:
        """Return the words that run a command on a node (None: on the controller)."""
        return self._hosts.at(node) if self._hosts else []

    def cut(self, node: str) -> None:
        """Pull a node's cable."""
        self._hosts.cable(node, "down")

    def mend(self, node: str) -> None:
        """Plug a node's cable in again. Its Slurm does nothing afterwards."""
        for pid in self._hosts.processes(node, "slurm"):
            os.kill(pid, signal.SIGSTOP)
        self._hosts.cable(node, "up")

    def ask(self, *command: str) -> str:
        """Return the output of a Slurm command; its errors are ignored."""
        return subprocess.run([*self._at(None), *command], env=self.env, stdout=subprocess.PIPE,
                              text=True, timeout=30, stderr=subprocess.DEVNULL).stdout

    def submit(self, *command: str, cwd: Path, **environment: str) -> str:
        """Submit a job by `sbatch`, and return its number."""
        done = subprocess.run([*self._at(None), "sbatch", "--parsable", *command], cwd=cwd,
                              text=True, timeout=30, env={**self.env, **environment},
                              capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """Return PENDING, RUNNING, COMPLETED, ..."""
        shown = self.ask("scontrol", "--oneliner", "show", "job", job)
        return shown.partition(" JobState=")[2].partition(" ")[0]

    def processes(self, job: str, step: str) -> list[int]:
        """Return the ids of the Python processes in a step of wbsp.sbatch: "ps", "worker-0", ..."""
        found, worker = [], step.partition("worker-")[2]
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                program = (path / "cmdline").read_bytes().partition(b"\0")[0].decode()
                told = dict(word.partition("=")[::2] for word in
                            (path / "environ").read_text(errors="replace").split("\0"))
                if (Path(program).name.startswith("python") and told.get("SLURM_JOB_ID") == job
                        and "SLURM_STEP_ID" in told
                        and told.get("WBSP_WORKER_INDEX", "") == worker):
                    found.append(int(path.name))
        return found

    def __exit__(self, *_):
        if self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired, AssertionError):
                self.ask("scancel", "--full", "--signal=KILL", "--user=root")
                self.ask("scancel", "--user=root")
                until(lambda: not self.ask("squeue", "--noheader").strip(), "jobs to end", 10)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        if self._hosts:
            self._hosts.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Hosts:
    """Hosts on this machine: network namespaces, each connected by a cable to a switch in another
    namespace.

    None of it is in the machine's own network.
    """

    HERE = "10.77.0.254"  # the switch's address

    def __init__(self, names: list[str]):
        self._names = names
        self._prefix = f"wbsp{os.getpid()}"
        self.close()  # what a process of the same number left
        self._ip("netns", "add", self._prefix)
        self._ip("-n", self._prefix, "link", "set", "lo", "up")
        self._ip("-n", self._prefix, "link", "add", "switch", "type", "bridge")
        self._ip("-n", self._prefix, "addr", "add", f"{self.HERE}/24", "dev", "switch")
        self._ip("-n", self._prefix, "link", "set", "switch", "up")
        for name in names:
            space = f"{self._prefix}-{name}"
            self._ip("netns", "add", space)
            self._ip("-n", self._prefix, "link", "add", name, "type", "veth", "peer", "name",
                     "eth0", "netns", space)
            self._ip("-n", self._prefix, "link", "set", name, "master", "switch", "up")
            self._ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                self._ip("-n", space, "link", "set", link, "up")

    def address(self, name: str) -> str:
        return f"10.77.0.{10 + self._names.index(name)}"

    def at(self, name: str | None) -> list[str]:
        """Return the words that run a command on a host; None: at the switch."""
        if name is None:
            return ["nsenter", f"--net=/run/netns/{self._prefix}"]
        return ["nsenter", f"--net=/run/netns/{self._prefix}-{name}", "unshare", "--uts",
                "sh", "-c", f'hostname {name}; exec "$@"', "sh"]

    def cable(self, name: str, state: str) -> None:
        """Set the cable's state to up or down."""
        self._ip("-n", self._prefix, "link", "set", name, state)

    def processes(self, name: str, program: str) -> list[int]:
        """Return the ids of the processes on a host whose name begins with `program`."""
        found = subprocess.run(["ip", "netns", "pids", f"{self._prefix}-{name}"], text=True,
                               stdout=subprocess.PIPE).stdout.split()
        return [int(pid) for pid in found
                if Path(f"/proc/{pid}/comm").read_text().startswith(program)]

    def close(self) -> None:
        """Kill the remaining processes on the hosts, and remove them."""
        for space in [*(f"{self._prefix}-{name}" for name in self._names), self._prefix]:
            if Path(f"/run/netns/{space}").exists():
                for pid in subprocess.run(["ip", "netns", "pids", space], text=True,
                                          stdout=subprocess.PIPE).stdout.split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                self._ip("netns", "delete", space)

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True)


def main(arguments: list[str]) -> int:
    if arguments == ["--install"]:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES],
                       check=True)
    elif arguments:
        print(f"unknown argument {arguments[0]!r}; there is --install", file=sys.stderr)
        return 1
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Slurm() as slurm:
        print(f"export SLURM_CONF={slurm.env['SLURM_CONF']}    # Ctrl-C here ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(60)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
