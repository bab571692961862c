"""What to take where nothing speaks for another model."""

from wbsp.sync.wbsp import OptimizedWBSP


class Auto(OptimizedWBSP):
    """pcc with pushes weighed by work and just in time: two of its options, set [ours].

    No rule chooses: in long trainings no model was ahead of this one in any kind of cluster by more
    than the seeds differ (reports/long-runs.md). Not for workers whose data differ: see `weight` of
    `WBSP`.
    """

    name = "auto"
    OPTIONS = {}
    commit, trigger, weight, late = "slowest", "all_pushed", "work", True
