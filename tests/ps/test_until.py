"""A run ends after so long a training: `--until`."""

from jobs import until

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
