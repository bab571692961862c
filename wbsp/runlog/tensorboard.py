"""TensorBoard scalars without TensorFlow.

TensorBoard's own writer imports TensorFlow if that is installed, which costs seconds and hundreds
of MiB in a process that does not need it otherwise; TensorBoard's record format does not need it.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from typing import Any

from wbsp.process.disk import DISK, disk_of
from wbsp.runlog.files import LineFile

VIRTUAL_DATE = 946_684_800.0  # the first second of the year 2000


class Scalars:
    """Writer of scalars into an event file of `folder`; every `write` reaches the disk.

    TensorBoard's relative axis shows the run's own time. Its wall axis shows the date of a real
    run, and a fixed date for a `virtual` run, whose bytes must not depend on the date. `say` is
    called with one line when the file cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], virtual: bool = False,
                 say: Callable[[str], None] = print):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        disk = disk_of(folder)
        virtual = virtual or disk is not DISK  # a simulated server's, too
        self._event, self._writer = Event, RecordWriter
        self._origin = VIRTUAL_DATE if virtual else time.time()
        maker = "virtual" if virtual else os.getpid()
        path = disk.path(folder) / f"events.out.tfevents.{self._origin:017.6f}.{maker}"
        while virtual and path.exists():  # of a server that is started again
            path = path.with_name(f"{path.name}+")
        self._records = LineFile(path, say=say)
        self._put(0.0, Event(wall_time=self._origin, file_version="brain.Event:2"))

    def write(self, t: float, step: int, scalars: dict[str, float]) -> None:
        """Add one point to each named curve, `t` seconds since the run's start."""
        event = self._event(wall_time=self._origin + t, step=step)
        for tag, value in scalars.items():
            event.summary.value.add(tag=tag, simple_value=value)
        self._put(t, event)

    def close(self) -> None:
        self._records.close()

    def _put(self, t: float, event: Any) -> None:
        record = io.BytesIO()
        self._writer(record).write(event.SerializeToString())
        self._records.write(t, record.getvalue())
        self._records.flush()
