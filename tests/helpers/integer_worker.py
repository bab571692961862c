"""`python integer_worker.py PLAN`: run one integer worker as a process.

PLAN is JSON, see `Plan`. The exit code is a worker's: 0 if all went well, 1 with one line if its
server is lost or refuses it, 128 + signum if it was interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from integer_replica import IntegerReplica, TableReplica, forget_cuts, write_result

from wbsp.access import Access
from wbsp.wire.errors import TransportError
from wbsp.worker.comm.transport import Transport
from wbsp.worker.runtime import WorkerRuntime


@dataclass
class Plan:
    """The plan of the worker's run, and the faults in it."""

    address: str
    worker: int | None  # None: the server chooses
    record: str  # folder for cuts-W.jsonl, acks-W.jsonl and result-W.json
    steps: int = 1_000_000
    all_lives: bool = False  # steps counts those of this worker's earlier processes, too
    size: int = 5  # floats
    table: bool = False  # of which a step moves a row or two
    seconds: float = 0.0  # of a step
    die_at: int | None = None  # kill -9 itself when that many steps are done
    stop_when_told: bool = False  # when the file `go` is there, as if all steps were done
    hold_at: int | None = None  # when that many steps are done, wait until the file `go` is there
    patience: float = 60.0  # seconds to try to reach a lost server
    token_file: str | None = None
    bandwidth: float | None = None  # bytes per second
    share: bool = True  # memory, with a server of this machine
    seed: int = 0


class NotingTransport(Transport):
    """A transport that records (seq, weight) of each answered push before any other code handles
    it.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self._session = self.client.session
        self._answered = self._session.answered
        self.sent = self.counted = 0.0
        self.least = float("inf")  # bytes of an update

    def records(self, path: Path) -> None:
        """Append to this file from now on."""
        self._record = open(path, "a")

    def note_sent(self) -> None:
        """Sum up the sent parts of the updates in `sent`, and the accepted ones in `counted`."""
        self._session.answered = self._note

    def _note(self, push, sent, ack, *spans):
        self.least = min(self.least, self.update_bytes(0))
        self.sent = self.sent + sent.astype(float)
        self.counted = self.counted + ack.weight * sent.astype(float)
        self._answered(push, sent, ack, *spans)

    @property
    def unsent(self):
        """Return what the run's wire format has not sent yet, float32 [size] or 0."""
        return 0.0 if self._session.sending.unsent is None else self._session.sending.unsent

    def listen(self, listener, layout):
        class Noting:
            def __getattr__(self, name):
                return getattr(listener, name)

            def acked(self, ack, seconds, record=self._record):
                print(json.dumps([ack.seq, ack.weight]), file=record, flush=True)
                return listener.acked(ack, seconds)

        super().listen(Noting(), layout)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(plan: Plan) -> int:
    """Work by the plan; return the exit code."""
    try:
        return work(plan)
    except TransportError as error:
        say(str(error) if plan.worker is None else f"worker {plan.worker}: {error}")
        return 1


def work(plan: Plan) -> int:
    """Do what `main` does, but raise the loss of the server."""
    folder, caught = Path(plan.record), []
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda signum, frame: caught.append(signum))
    kind = TableReplica if plan.table else IntegerReplica
    access = Access(plan.address, plan.token_file or "", patience=plan.patience,
                    bandwidth=plan.bandwidth, share=plan.share)
    transport = NotingTransport(access, plan.worker, say, lambda: bool(caught))
    sums = {}
    if plan.table:
        transport.note_sent()
    try:
        welcome = transport.hello({}, 60)
        plan.worker = transport.worker
        transport.records(folder / f"acks-{plan.worker}.jsonl")
        replica = kind(plan.worker, plan.size, folder, plan.seed)
        joined = transport.join(replica.layout, replica.read, 60)
        say("is a member")
        runtime = WorkerRuntime(transport, replica, welcome.rule, joined, None, say,
                                lambda: bool(caught))
        runtime.start()
        say(f"starts with seq {runtime.agent.seq} after {runtime.steps_before} steps of "
            f"{runtime.agent.run_steps} in the run")
        forget_cuts(folder, plan.worker, runtime.agent.seq)
        before = runtime.steps_before if plan.all_lives else 0
        for step in range(before + 1, plan.steps + 1):
            if runtime.stopped or caught or (plan.stop_when_told and (folder / "go").exists()):
                break
            runtime.step_begins()
            time.sleep(plan.seconds)
            replica.step()
            runtime.step_done(samples=1, loss=0.0)
            say(f"step {step} done, version {runtime.agent.version}")
            if step == plan.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            while step == plan.hold_at and not (folder / "go").exists():
                time.sleep(0.01)
        runtime.finish("interrupted" if caught else None)
    finally:
        with contextlib.suppress(TransportError):
            transport.close()
    report = runtime.report()
    if plan.table:
        sums = {name: np.broadcast_to(getattr(transport, name), replica.x.shape).tolist()
                for name in ("sent", "counted", "unsent")} | {"least": transport.least}
    write_result(folder / f"result-{plan.worker}.json", replica, version=runtime.agent.version,
                 seconds=report.seconds, steps=report.steps, interrupted=bool(caught), **sums)
    return 128 + caught[0] if caught else 0


if __name__ == "__main__":
    sys.exit(main(Plan(**json.loads(sys.argv[1]))))
