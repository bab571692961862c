"""Workers on other machines than the server, started by hand by the lines that it prints."""

import re
import shutil
from pathlib import Path

import forked
import hosts
import pytest
from jobs import ServerJob, free_port

from wbsp.reading import versions

USER_WORKER = Path(__file__).parent / "helpers" / "user_worker.py"
STEPS = 5
apart = pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))


class Machine:
    """A machine with a home folder of its own, and perhaps a network of its own."""

    def __init__(self, jobs, name: str, space: str | None = None):
        self._jobs, self._space = jobs, space
        self.home = jobs.folder / name
        self.home.mkdir()
        self.token = self.home / ".config" / "wbsp" / "token"

    def start(self, name, *arguments, **environment):
        return self._jobs.start(name, *arguments, space=self._space, fork=forked.WBSP,
                                kind=ServerJob, HOME=str(self.home),
                                **{"XDG_CONFIG_HOME": "", **environment})

    def server(self, *flags, workers=1):
        server = self.start("server", "-m", "wbsp.ps", f"--worker_num={workers}", "--sync=asp",
                            "--one_run", f"--log_root={self.home / 'runs'}", *flags)
        server.cwd = self._jobs.folder
        return server.listens()

    def worker(self, index=0, timeout=60.0, steps=STEPS, **environment):
        return self.start(f"worker{index}", USER_WORKER, steps, timeout,
                          WBSP_WORKER_INDEX=str(index), **environment)


@pytest.fixture
def machines(jobs):
    with hosts.Hosts("server", "other") as network:
        yield [Machine(jobs, name, network.space(name)) for name in ("server", "other")]


@pytest.fixture
def machine(jobs):
    return Machine(jobs, "machine")


@apart
def test_two_machines_train_together_by_the_lines_that_the_server_prints(machines):
    """Its lines suffice: a worker without a token learns where to get it."""
    here, there = machines
    server = here.server("--host=0.0.0.0", workers=2)
    start = server.until("for each worker there: ").partition("WBSP_SERVER=")[2]
    address, _, command = start.partition(" ")
    assert (address, command) == ("10.77.0.1:2606", "python train.py")
    early = there.worker(1, WBSP_SERVER=address)
    assert early.ends() == 1
    early.was_clean()
    assert early.find("refused the connection: .* token .* copy that token to ~/.config/wbsp/token")
    assert server.until(f"does not speak the protocol or know the token of {here.token}")
    (copy,) = re.findall(r"scp \S+@10.77.0.1:(\S+) ~/.config/wbsp/token",
                         server.until("type there, once: mkdir -pm 700 ~/.config/wbsp && scp "))
    there.token.parent.mkdir(parents=True)
    shutil.copy(copy, there.token)
    workers = [here.worker(0), there.worker(1, WBSP_SERVER=address)]
    for worker in workers:
        worker.ends_well()
    server.ends_well()
    assert {event["worker"] for event in server.events("accept")} == {0, 1}
    again = here.server("--host=0.0.0.0")
    again.until("for each worker there: ")
    assert "made a token" in server.text and "made a token" not in again.text
    secret = here.token.read_text().strip()
    assert not any(secret in job.text for job in (server, again, early, *workers))


@apart
def test_both_sides_of_a_server_of_one_machine_name_the_way_out(machines):
    here, there = machines
    server = here.server()
    server.until("only this machine can connect; for workers on other machines, start the server "
                 "with --host=0.0.0.0")
    worker = there.worker(WBSP_SERVER="10.77.0.1:2606", timeout=0.5)
    assert worker.ends() == 1
    worker.was_clean()
    assert worker.find(r"no server answered at 10.77.0.1:2606 within 0.5 s; check that it runs "
                       r"there, that it listens for other machines \(--host=0.0.0.0\), and "
                       "that the port is right and no firewall closes it")
    here.worker().ends_well()
    server.ends_well()


@apart
def test_a_server_at_one_of_its_addresses_is_found_there(machines):
    here, there = machines
    server = here.server("--host=10.77.0.1", "--port_base=2700")
    assert server.until("for each worker there: WBSP_SERVER=10.77.0.1:2700 ")
    there.token.parent.mkdir(parents=True)
    shutil.copy(here.token, there.token)
    there.token.chmod(0o640)
    exposed = there.worker(WBSP_SERVER="10.77.0.1:2700")
    assert exposed.ends() == 1
    assert exposed.find(f"other users may read the token {there.token} .mode 640.: chmod 600 ")
    there.token.chmod(0o600)
    there.worker(WBSP_SERVER="10.77.0.1:2700").ends_well()
    server.ends_well()


def test_a_process_on_an_open_servers_machine_finds_its_token(machine, monkeypatch):
    """A worker and a reader, which name no address of the network."""
    port = free_port()
    server = machine.server("--host=*", f"--port_base={port}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(machine.home / ".config"))
    worker = machine.worker(WBSP_SERVER=f"localhost:{port}", steps=100)
    numbers = [version.number for version in versions(f"localhost:{port}", patience=60.0)]
    worker.ends_well()
    server.ends_well()
    assert numbers[-1] == 100


def test_a_site_on_the_machine_of_an_open_server_finds_its_token(machine):
    above, below = free_port(), free_port()
    top = machine.server("--host=0.0.0.0", f"--port_base={above}")
    site = machine.start("site", "-m", "wbsp.ps", "--worker_num=1", f"--upstream=localhost:{above}",
                         "--site=0", f"--port_base={below}",
                         f"--log_root={machine.home / 'runs of the site'}")
    machine.worker(WBSP_SERVER=f"localhost:{below}").ends_well()
    site.ends_well()
    top.ends_well()


def test_a_worker_on_the_machine_of_another_users_open_server_is_refused(machine, jobs):
    port = free_port()
    server = machine.server("--host=0.0.0.0", f"--port_base={port}")
    other = Machine(jobs, "other")
    worker = other.worker(WBSP_SERVER=f"localhost:{port}")
    assert worker.ends() == 1
    assert worker.find("refused the connection: .* token .*this process has none")
    machine.worker(WBSP_SERVER=f"localhost:{port}").ends_well()
    server.ends_well()


def test_a_token_at_the_usual_place_changes_nothing_on_one_machine(machine):
    machine.token.parent.mkdir(parents=True)
    machine.token.write_text("readable by all, but not used")
    port = free_port()
    server = machine.server(f"--port_base={port}")
    worker = machine.worker(WBSP_SERVER=f"127.0.0.1:{port}")
    worker.ends_well()
    server.ends_well()
    assert " token" not in worker.text and " token" not in server.text


def test_a_named_token_that_others_can_read_is_one_line(machine):
    path = machine.home / "named"
    path.write_text("a secret of the run")
    path.chmod(0o644)
    port = free_port()
    server = machine.server("--host=0.0.0.0", f"--port_base={port}", f"--token_file={path}")
    assert server.until(f"with a copy of {path}: WBSP_TOKEN_FILE={path} WBSP_SERVER=")
    worker = machine.worker(WBSP_SERVER=f"localhost:{port}", WBSP_TOKEN_FILE=str(path))
    worker.ends_well()
    server.ends_well()
    for job in server, worker:
        assert len(job.find(f"every user of this machine can read the token {path}")) == 1
    assert not machine.token.exists()


def test_a_server_that_can_make_no_token_ends_in_one_line(machine):
    (machine.home / ".config").write_text("no folder")
    server = machine.start("server", "-m", "wbsp.ps", "--worker_num=1", "--host=0.0.0.0",
                           f"--port_base={free_port()}")
    assert server.ends() == 1
    (line,) = server.lines
    assert line.startswith(f"wbsp.ps: cannot make a token at {machine.token}: ")
    assert "--token_file" in line
