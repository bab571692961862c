"""The flags of a server, which `python -m wbsp.ps` and the launcher define by one function."""

import re
import subprocess
import sys

import pytest
from jobs import ROOT

OF_A_SERVER = {"sync", "sync_option", "outer", "outer_option", "wire", "log_root", "standby_of",
               "shards", "connect_timeout", "band_width_limit", "transport",
               "token_file", "resume", "fail_if_lost", "worker_num", "host", "port_base",
               "base_dir", "check_period", "until"}


@pytest.mark.parametrize("command, default, others", [
    (["-m", "wbsp.ps"], "(default: pcc)", "started with --shard"),
    (["runcifar10gpu.py"], "default: the last part of --base_dir",
     "started with --job_name=shard")],
    ids=["wbsp.ps", "launcher"])
def test_help_shows_each_flag_of_a_server(command, default, others):
    text = subprocess.run([sys.executable, *command, "--help"], cwd=ROOT, capture_output=True,
                          text=True).stdout
    assert set(re.findall(r"^  --([\w\[\]]+)", text, re.MULTILINE)) >= OF_A_SERVER
    assert "\nother:\n" not in text, "a flag is in no group"
    assert len(max(text.splitlines(), key=len)) <= 100 and "--helpfull" not in text
    words = " ".join(text.split())
    assert default in words and others in words


@pytest.mark.parametrize("until, reason", [
    ("soon", "--until: 'soon' is not a time; give a number of us, ms, s, min, h"),
    ("0min", "--until=0min: it must be above 0")])
def test_an_invalid_time_is_refused_in_one_line(until, reason):
    done = subprocess.run([sys.executable, "-m", "wbsp.ps", "--worker_num=1", f"--until={until}"],
                          cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == f"wbsp.ps: {reason}\n"


@pytest.mark.parametrize("command, name", [
    (["-m", "wbsp.ps", "--worker_num=1"], "wbsp ps"),
    (["-m", "wbsp.ps", "--upstream=localhost:1", "--site=0"], "wbsp ps"),
    (["runcifar10gpu.py", "--job_name=worker"], "runcifar10gpu")], ids=["server", "site", "worker"])
@pytest.mark.parametrize("limit", ["0", "-1", "nan"])
def test_a_bad_rate_limit_is_refused_by_the_name_of_the_flag(command, name, limit):
    done = subprocess.run([sys.executable, *command, f"--band_width_limit={limit}"],
                          cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith(
        f"{name}: --band_width_limit={float(limit)}: it must be above 0 MB/s (")
