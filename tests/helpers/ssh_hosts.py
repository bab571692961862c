"""Run hosts that ssh reaches: network namespaces (`hosts`) with an sshd each, and a client's
settings.

    python tests/helpers/ssh_hosts.py --install    # Debian: apt-get

It uses no file of the machine's own ssh.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hosts import Hosts, why_not
from jobs import surroundings, until

SSHD = "/usr/sbin/sshd"
PACKAGES = ["openssh-client", "openssh-server"]


def missing() -> str | None:
    """Return why such hosts cannot run here; None: they can."""
    if shutil.which("ssh") is None or not os.path.exists(SSHD):
        return "no sshd; on Debian: python tests/helpers/ssh_hosts.py --install"
    return why_not()


class SshHosts(contextlib.AbstractContextManager):
    """The host `here`, and others at which its root may run commands by ssh.

    Attributes:
        hosts: all of them.
        here: the namespace to start commands in.
        environment: in which `ssh NAME` reaches the others.
    """

    def __init__(self, folder: Path, names: Sequence[str]):
        """Start the hosts; `folder`: for keys and settings; `names`: of the other hosts."""
        self._daemons: list[subprocess.Popen] = []
        os.makedirs("/run/sshd", exist_ok=True)  # where sshd locks its children in
        self.hosts = Hosts("here", *names)
        self.here = self.hosts.space("here")
        try:
            self._start(folder, names)
        except BaseException:
            self.__exit__()
            raise

    def _start(self, folder: Path, names: Sequence[str]) -> None:
        folder.mkdir(mode=0o700)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name],
                           check=True)
        keys = folder / "authorized_keys"
        keys.write_text((folder / "user.pub").read_text())
        keys.chmod(0o600)
        python_path = surroundings()["PYTHONPATH"]
        (folder / "sshd_config").write_text(
            f"HostKey {folder}/host\nAuthorizedKeysFile {keys}\nStrictModes no\nUsePAM no\n"
            f"PasswordAuthentication no\nPermitRootLogin yes\nSetEnv PYTHONPATH={python_path}\n"
            f"PidFile none\n")
        (folder / "known_hosts").write_text("".join(
            f"{self.hosts.address[name]} {(folder / 'host.pub').read_text()}" for name in names))
        (folder / "config").write_text("".join(
            f"Host {name}\n  HostName {self.hosts.address[name]}\n" for name in names)
            + f"Host *\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {folder}/known_hosts\n")
        program = folder / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\nexec {shutil.which('ssh')} -F {folder}/config \"$@\"\n")
        program.chmod(0o755)
        self.environment = {"PATH": os.pathsep.join(
            [str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"]])}
        for name in names:
            with open(folder / f"sshd-{name}.log", "wb") as log:
                self._daemons.append(subprocess.Popen(
                    ["ip", "netns", "exec", self.hosts.space(name), SSHD, "-D", "-e", "-f",
                     folder / "sshd_config"], stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, env=os.environ))
        for name in names:
            until(lambda name=name: subprocess.run(
                ["ip", "netns", "exec", self.here, "ssh", name, "true"], capture_output=True,
                env={**os.environ, **self.environment}).returncode == 0, f"the sshd of {name}", 30)

    def processes(self, name: str) -> list[int]:
        """Return the ids of the Python processes on that host."""
        found = subprocess.run(["ip", "netns", "pids", self.hosts.space(name)], text=True,
                               stdout=subprocess.PIPE).stdout.split()
        return [int(pid) for pid in found if _is_python(pid)]

    def __exit__(self, *_: object) -> None:
        for daemon in self._daemons:
            daemon.terminate()
            daemon.wait()
        self.hosts.__exit__()


def _is_python(pid: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().startswith("python")
    return False


if __name__ == "__main__":
    if sys.argv[1:] != ["--install"]:
        sys.exit("give --install")
    subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES], check=True)
