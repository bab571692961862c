"""A run ends after a time of training: `--until`."""

import json
import re
from datetime import datetime

from jobs import until

import wbsp
from wbsp.ps.checkpoint import format as checkpoint


def test_training_ends_after_its_time_and_a_restarted_server_counts_on(jobs):
    server = jobs.server("--until=1h", "--check_period=0.1").listens()  # a busy machine may be slow
    workers = [jobs.integer_worker(server.address, worker, seconds=0.02) for worker in range(2)]
    until(lambda: sum(event["version"] > 0 for event in server.events("checkpoint")) > 1,
          "the second checkpoint, which begins when the first has been written")
    server.kill()
    server = jobs.server("--resume", "--until=3s", port=int(server.address.split(":")[1]))
    for job in (*workers, server):
        job.ends_well()
    (stop,) = server.events("stop")
    first, again = (event["t"] for event in server.events("start"))
    since = checkpoint.load(server.folder / "checkpoint.safetensors").state.trains_since
    assert stop["reason"] == "3 s of training are over" and stop["t"] >= since + 3
    assert first <= since < again, "counted from the first server's start of training on"
    lines = (server.folder / "console.log").read_text()
    starts = re.findall(r"a server of wbsp (\S+) starts on (\S+), (\S+), Python [\d.]+: ", lines)
    run = json.loads((server.folder / "run.json").read_text())
    assert [start[:2] for start in starts] == 2 * [(wbsp.__version__, run["host"])]
    assert run["release"] == wbsp.__version__
    dates = [datetime.fromisoformat(date) for date in (run["date"], *(s[2] for s in starts))]
    assert all(date.tzinfo for date in dates) and dates == sorted(dates)
    assert lines.index("resuming from version") < lines.index("stopped: 3 s of training are over")
    assert "settings differ from the original run: check_period 0.1, now 5.0\n" in lines
