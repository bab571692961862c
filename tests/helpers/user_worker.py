"""`python user_worker.py STEPS TIMEOUT`: run an integer worker that finds its server, index and
token as a user's script does: in the environment, or by default.

TIMEOUT: seconds to wait for the server.
"""

from __future__ import annotations

import sys
import time

from integer_replica import IntegerReplica

from wbsp.runlog.console import say
from wbsp.worker.loop import Loop, Worker


def main(steps: int, timeout: float) -> None:
    member = Worker(connect_timeout=timeout, say=say, patience=timeout)
    with member.leaving_on_error():
        member.enter(Loop())
        member.connect()
        replica = IntegerReplica(member.index)
        member.join(replica)
        for _ in range(steps):
            if member.stop_reason:
                break
            member.step_begins()
            time.sleep(0.01)
            replica.step()
            member.begun().step_done(samples=1, loss=0.0)
        member.finish()
        member.end(None)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
