"""`wbsp run --hosts`: workers on other machines, which ssh reaches."""

import os
import signal
import stat

import psutil
import pytest
import ssh_hosts
from jobs import until

from wbsp.run.hosts import Place, parse_hosts

night = pytest.mark.skipif(not os.environ.get("WBSP_SSH"), reason="WBSP_SSH=1 starts an sshd")
WORKER = """
import os, sys
from integer_worker import Plan, main
from wbsp.environment import Task
task = Task.complete(None, None)
sys.exit(main(Plan(task.address, task.worker, ".", steps=int(sys.argv[1]), seconds=0.02,
                   all_lives=True, token_file=os.environ["WBSP_TOKEN_FILE"])))
"""


@pytest.mark.parametrize("text, places", [
    ("fast:2,old:1", [("fast", 2), ("old", 1)]), ("fast", [("fast", 1)]),
    ("me@fast.lan:3, localhost", [("me@fast.lan", 3), ("localhost", 1)]),
    ("[fe80::1]:2", [("fe80::1", 2)])])
def test_hosts_are_names_with_a_number_of_workers(text, places):
    assert parse_hosts(text) == [Place(*place) for place in places]


@pytest.mark.parametrize("text, says", [
    ("", "'' is not HOST or HOST:WORKERS"), ("fast:two", "'fast:two' is not HOST or"),
    ("fast:0", "'fast:0' is not"), ("-oProxyCommand=x:1", "'-oProxyCommand=x:1' is not"),
    ("fast:1,fast:2", "names fast twice")])
def test_other_texts_are_refused(text, says):
    with pytest.raises(ValueError, match=says):
        parse_hosts(text)


@pytest.fixture
def away(tmp_path, jobs):
    """away(*flags): the job of a `wbsp run` with these flags, at a host that reaches two others."""
    if why := ssh_hosts.missing():
        pytest.skip(why)
    (tmp_path / "train.py").write_text(WORKER)
    with ssh_hosts.SshHosts(tmp_path / "ssh", ["fast", "old"]) as hosts:
        def start(*words):
            job = jobs.start("run", "-m", "wbsp.run", "--check_period=0.2", *words,
                             space=hosts.here, **hosts.environment)
            job.hosts = hosts
            return job
        yield start


def pids(hosts, name):
    """Ids of the workers on a host."""
    return [pid for pid in hosts.processes(name)
            if "train.py" in psutil.Process(pid).cmdline()]


@night
def test_a_run_on_three_machines_ends_well(away):
    job = away("--hosts=localhost:1,fast:2,old:1", "train.py", "30")
    job.until(r"worker 3 \| step 5 done")
    token = psutil.Process(pids(job.hosts, "old")[0]).environ()["WBSP_TOKEN_FILE"]
    secret = open(token).read()
    assert stat.S_IMODE(os.stat(token).st_mode) == 0o600
    lines = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    assert len(lines) > 3 and not any(secret in word for line in lines for word in line)
    job.ends_well()
    assert all(job.find(rf"^worker {number} \| step 30 done") for number in range(4))
    assert job.find("wbsp run on fast: 2 workers with")
    assert job.lines[-1] == "wbsp run: all workers finished; the files are in runs/pcc/run-001"
    assert not os.path.exists(token)
    for name in ("fast", "old"):
        until(lambda name=name: not job.hosts.processes(name), f"the processes of {name} to end")


@night
def test_a_killed_worker_and_a_lost_connection_are_restarted(away):
    job = away("--hosts=fast:1,old:1", "train.py", "400")
    job.until(r"worker 1 \| step 10 done")
    os.kill(pids(job.hosts, "fast")[0], signal.SIGKILL)
    job.until("wbsp run on fast: worker 0 was killed by SIGKILL; restarting it")
    client = next(one for one in psutil.Process(job.process.pid).children()
                  if "old" in one.cmdline())
    before = pids(job.hosts, "old")
    client.kill()
    job.until("the connection to old was lost; ")
    until(lambda: set(pids(job.hosts, "old")) - set(before), "another worker at old")
    until(lambda: not set(pids(job.hosts, "old")) & set(before), "the first one to end")
    job.ends_well()
    assert "old was restarted once" in job.lines[-1]


@night
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_on_any_machine_survives_the_command(away, signum):
    job = away("--hosts=localhost:1,fast:2,old:1", "train.py", "100000")
    job.until(r"worker 3 \| step 5 done")
    assert len(pids(job.hosts, "fast")) == 2
    psutil.Process(job.process.pid).send_signal(signum)
    code = job.ends()
    assert code in (-signum, 128 + signum)
    for name in ("here", "fast", "old"):
        until(lambda name=name: not job.hosts.processes(name), f"the processes of {name} to end",
              60)


@night
def test_a_machine_that_is_cut_off_is_lost_and_joins_again(away):
    job = away("--hosts=fast:1,old:1", "train.py", "3000")
    job.until(r"worker 1 \| step 5 done")
    job.hosts.hosts.cut("old")
    job.until("the connection to old was lost; connecting again")
    job.hosts.hosts.mend("old")
    job.ends_well()
    assert job.find(r"^worker 1 \| step 3000 done")


@night
@pytest.mark.parametrize("flags, says", [
    (["--hosts=fast:1,nobody:1"], "wbsp run: cannot use nobody: ssh: Could not resolve hostname "),
    (["--hosts=fast:1,10.77.0.9:1"], "wbsp run: cannot use 10.77.0.9: ssh: connect to host 10.77"),
    (["--host=localhost", "--hosts=fast:1"], "wbsp run: --host=localhost: other machines cannot "),
    (["--workers=2", "--hosts=fast:1"], "wbsp run: --workers and --hosts do not go together"),
])
def test_impossible_settings_are_refused_in_one_line(away, flags, says):
    job = away(*flags, "train.py", "5")
    assert job.ends() == 1
    assert next(line for line in job.lines if "the server is" not in line).startswith(says)
    assert not job.find("server   ")
