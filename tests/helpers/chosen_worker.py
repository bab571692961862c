"""`python chosen_worker.py ADDRESS`: train one step of a run as a worker without an index; or do
the same in the test's own process.
"""

import sys

from integer_replica import IntegerReplica

from wbsp.worker.loop import Loop, Worker


def worker(address, said=None, timeout=60.0):
    """Create a worker whose index the server chooses; its console lines are appended to `said`."""
    say = print if said is None else said.append
    return Worker(address, connect_timeout=timeout, say=say, patience=60.0)


def train(one):
    """Train a run of one step."""
    one.enter(Loop())
    with one.leaving_on_error():
        one.connect()
        one.join(IntegerReplica(0))
        one.step_begins()
        one.begun().step_done(samples=1, loss=0.0)
        one.finish()
    one.end(None)


if __name__ == "__main__":
    one = worker(sys.argv[1])
    print("is worker", one.index, flush=True)
    train(one)
