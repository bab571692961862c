"""`python site_server.py RECORD ARGUMENTS...`: run `python -m wbsp.ps ARGUMENTS` of a site, and
record what it pushes to the server above.

The file RECORD has a line [seq, U] for each cut, where the cut is U * pattern (null: it is no such
product); answers.jsonl next to it has one [seq, weight] for each answer. If workers share their
data, spans.jsonl has [seq, positions, update] for each cut. A cut that was in no checkpoint when
the site was killed is taken again under its number: the last line of a number counts.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
from integer_replica import pattern

from wbsp.site.upstream import Upstream


def note_cuts(record: Path) -> None:
    """Record each cut of this process before it is sent, and each answer as it arrives."""
    hold, file = Upstream._hold, open(record, "a")
    spans = open(record.with_name("spans.jsonl"), "a")

    def noting(self: Upstream, cut: Any) -> None:
        assert self._progress.cut is not None
        note(cut.push, self._progress.cut)
        hold(self, cut)

    def note(push: Any, update: np.ndarray) -> None:
        if push.spans is not None:
            print(json.dumps([push.seq, push.spans, update.tolist()]), file=spans, flush=True)
            return
        shape = pattern(update.size)
        whole = bool((update == shape * (update[0] / shape[0])).all())
        print(json.dumps([push.seq, float(update[0] / shape[0]) if whole else None]),
              file=file, flush=True)

    Upstream._hold = noting  # type: ignore[method-assign]
    acked, answers = Upstream._acked, open(record.with_name("answers.jsonl"), "a")

    def hearing(self: Upstream, ack: Any, seconds: float) -> None:
        print(json.dumps([ack.seq, ack.weight]), file=answers, flush=True)
        acked(self, ack, seconds)

    Upstream._acked = hearing  # type: ignore[method-assign]


def noted(record: Path) -> dict[int, float]:
    """Return seq -> U of a site's cuts, or the weights of their answers, over all processes of its
    server.
    """
    return dict(json.loads(line) for line in record.read_text().splitlines())


if __name__ == "__main__":
    note_cuts(Path(sys.argv[1]))
    sys.argv = ["wbsp.ps", *sys.argv[2:]]
    runpy.run_module("wbsp.site", run_name="__main__", alter_sys=True)
