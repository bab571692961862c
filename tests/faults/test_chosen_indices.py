"""Workers without an index, for which the server chooses one: deaths, returns, one too many."""

import signal

from conservation import IntegerRun, assert_conserved
from integer_replica import read_result
from jobs import until

from wbsp.ps.checkpoint import format as checkpoint

SOON = ("import runpy, wbsp.timeouts; wbsp.timeouts.INDEX_BACK = 2.0\n"
        "runpy.run_module('wbsp.ps', run_name='__main__')")


def resumed(jobs, server, *flags):
    """The server, started again by its command, which waits for owners of indices for 2 s."""
    again = jobs.start("server", "-c", SOON, *flags, "--resume", kind=type(server))
    again.address, again.cwd = server.address, server.cwd
    return again


def indices(server):
    """The indices of the processes that have joined, in their order."""
    return [event["worker"] for event in server.events("join")]


def test_each_process_has_an_index_of_its_own_and_one_too_many_is_refused(jobs):
    server = jobs.server(workers=3).listens()
    explicit = jobs.integer_worker(server.address, 1, steps=40, hold_at=5, seconds=0.01)
    explicit.until("is a member")
    workers = [jobs.integer_worker(server.address, None, steps=40, hold_at=5, seconds=0.01)
               for _ in range(2)]
    for worker in workers:
        worker.until("step 5 done")
    late = jobs.integer_worker(server.address, None)
    assert late.ends() == 1
    assert late.lines[-1] == (
        "the server refused: a worker without an index cannot join: all 3 indices are taken by "
        "connected workers; start the server with --worker_num=4 for one more")
    (jobs.folder / "go").touch()
    for job in (explicit, *workers, server):
        job.ends_well()
    assert sorted(indices(server)) == [0, 1, 2]
    assert_conserved(IntegerRun.of_processes(server.folder, jobs.folder))


def test_a_restarted_worker_waits_for_its_index(jobs):
    server = jobs.server(sync="asp").listens()
    other = jobs.integer_worker(server.address, None, steps=60, hold_at=20, seconds=0.01)
    other.until("is a member")
    doomed = jobs.integer_worker(server.address, None, die_at=5, steps=1000, seconds=0.01)
    assert doomed.ends() == -signal.SIGKILL
    back = jobs.integer_worker(server.address, None, steps=10, seconds=0.01, seed=1)
    back.until("waits: all 2 indices are taken; that of worker 1, which is silent, becomes")
    server.until("worker 1 was lost")
    back.until("starts with seq")
    (jobs.folder / "go").touch()
    for job in (back, other, server):
        job.ends_well()
    assert indices(server) == [0, 1, 1]
    assert back.find("connected to localhost")
    assert_conserved(IntegerRun.of_processes(server.folder, jobs.folder))


def test_a_worker_that_is_cut_off_by_a_server_s_death_keeps_its_index(jobs):
    """It reconnects within a moment; a faster new process must not get its index."""
    flags = "--worker_num=2", "--sync=asp", "--check_period=0.1", "--one_run"
    server = jobs.server("--check_period=0.1", sync="asp").listens()
    port = f"--port_base={server.address.rpartition(':')[2]}"
    stays, doomed = [jobs.integer_worker(server.address, None, steps=60, hold_at=20, seconds=0.01)
                     for _ in range(2)]
    for worker in (stays, doomed):
        worker.until("step 20 done")
    path = server.folder / "checkpoint.safetensors"
    until(lambda: path.exists() and checkpoint.load(path).state.version > 5, "a checkpoint")
    stays.signal(signal.SIGSTOP)
    doomed.kill()
    server.kill()
    server = resumed(jobs, server, *flags, port)
    back = jobs.integer_worker(server.address, None, steps=10, seconds=0.01, seed=1)
    back.until("waits: all 2 indices are taken; that of worker 0, 1, which is silent,")
    stays.signal(signal.SIGCONT)
    server.until("worker . reconnected")
    back.until("starts with seq")
    (jobs.folder / "go").touch()
    for job in (back, stays, server):
        job.ends_well()
    reconnected = int(server.find("reconnected")[0].partition("worker ")[2][0])
    assert indices(server)[-1] == 1 - reconnected
    finals = [read_result(jobs.folder, worker)["final"] for worker in range(2)]
    assert finals[0] == finals[1] == checkpoint.load(path).vector.tolist()


def test_a_run_whose_processes_all_died_continues_with_new_ones(jobs):
    """As after a restart of the machine, with the same commands."""
    flags = "--worker_num=2", "--sync=pcc", "--check_period=0.1", "--one_run"
    server = jobs.server("--check_period=0.1").listens()
    port = f"--port_base={server.address.rpartition(':')[2]}"
    workers = [jobs.integer_worker(server.address, None, seconds=0.01) for _ in range(2)]
    for worker in workers:
        worker.until("step 20 done")
    path = server.folder / "checkpoint.safetensors"
    until(lambda: path.exists() and all(checkpoint.load(path).state.next_seq.get(worker)
                                        for worker in range(2)), "a checkpoint with pushes")
    for job in (*workers, server):
        job.kill()
    server = resumed(jobs, server, *flags, port)
    workers = [jobs.integer_worker(server.address, None, steps=10, seconds=0.01, seed=1)
               for _ in range(2)]
    for job in (*workers, server):
        job.ends_well()
    assert sorted(indices(server)[-2:]) == [0, 1]
    assert all(worker.find("starts with seq [1-9]") for worker in workers)
