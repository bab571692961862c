"""A worker without an index requests one from its server when it is first needed."""

import copy
import os

import chosen_worker
import forked
import pytest
from chosen_worker import train, worker
from jobs import free_port

from wbsp.wire.errors import TransportError
from wbsp.worker import next_run
from wbsp.worker.loop import PROCESS, Worker


@pytest.fixture
def server(jobs):
    return jobs.server(workers=2, series=True).listens()


@pytest.fixture(autouse=True)
def process_ends(jobs):
    """Act as the end of this process would while its server runs."""
    yield
    for one in PROCESS.members:
        one.close()
    next_run.close_all()


def test_the_first_read_of_the_index_connects(server):
    said = []
    one = worker(server.address, said)
    one.say("before")
    assert not one.in_run and one.index == 0 and one.in_run
    one.say("after")
    assert said == ["before", "worker 0: after"]


def test_a_read_without_a_server_prints_what_it_waits_for_and_fails_in_one_line():
    said, address = [], f"localhost:{free_port()}"
    with pytest.raises(TransportError, match=f"no server answered at {address} within 2.5 s"):
        assert worker(address, said, 2.5).index
    assert said and said[0].startswith(f"waiting for the server at {address}, for ")


def test_a_process_is_one_worker(server):
    one = worker(server.address)
    assert one.index == worker(server.address).index == copy.copy(worker(server.address)).index == 0
    one.close()
    again = worker(server.address)
    again.connect()
    assert again.index == 0


def test_a_callback_with_an_index_passes_it_to_the_next_callback(jobs):
    """A script may read the index from one callback and train with another."""
    server = jobs.server(workers=1).listens()
    asked, said = worker(server.address), []
    assert asked.index == 0
    one = worker(server.address, said)
    one.connect()
    assert (one.index, asked.index, one.transport.worker) == (0, 0, 0) and not said
    assert one.in_run and not asked.in_run
    train(one)
    assert one.index == 0 and not one.in_run


def test_a_process_that_was_forked_is_another_worker(server):
    one = worker(server.address)
    assert one.index == 0
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(writing, f"{one.index} {worker(server.address).index}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 100) == b"1 1"
    os.waitpid(child, 0)
    assert one.index == 0 and one.in_run


def test_a_process_keeps_its_index_from_run_to_run(jobs):
    server = jobs.server(series=True).listens()
    other = jobs.start("other", chosen_worker.__file__, server.address, fork=forked.WBSP)
    other.until("is worker 0")
    one = worker(server.address)
    train(one)
    assert (one.index, one.welcome.settings["fit"]) == (1, "1")
    other.ends_well()
    server.until("waiting for the next fit of worker 1")
    for fit in "2", "3":
        again = worker(server.address)
        train(again)
        assert (again.index, again.welcome.settings["fit"]) == (1, fit)


def test_a_worker_that_left_in_mid_run_returns_to_its_index(server):
    one = worker(server.address)
    assert one.index == 0
    one.end("an exception")
    one.connect()
    assert one.index == 0
    one.end("an exception")
    other = Worker(server.address, 0)
    PROCESS._own = b""  # as if it were another process
    other.connect()
    PROCESS._own = b""
    one.connect()
    assert one.index == 1, "its index has another owner now"
