"""The timeline of a worker of a user's own training, in the folder of its run."""

from __future__ import annotations

from collections.abc import Callable

from wbsp.process.host import Host
from wbsp.runlog.folder import read_settings
from wbsp.runlog.worker import MOST, WorkerLog
from wbsp.wire.messages.from_server import RunSettings


def timeline(run: RunSettings, worker: int, say: Callable[[str], None],
             on: Host) -> WorkerLog | None:
    """Return the timeline of a worker in the run of the server's Welcome.

    None: this machine cannot access the run's folder, or cannot write to it.
    """
    folder = on.disk.path(run.path)
    try:
        if read_settings(folder).get("id") != run.id:
            return None
        return WorkerLog(folder, worker, run.sync, append=True, say=say, most=MOST,
                         texts=False)
    except (OSError, ValueError):
        return None
