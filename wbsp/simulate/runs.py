"""One simulated run from its plan to its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wbsp.ps.store import Snapshot
from wbsp.runlog.folder import write_settings
from wbsp.runlog.reader import Run, read_run
from wbsp.simulate.cluster import Cluster
from wbsp.simulate.machine import INF
from wbsp.simulate.progress import Progress
from wbsp.simulate.record import Recorder
from wbsp.simulate.spec import ClusterSpec
from wbsp.simulate.workload import TimingWorkload
from wbsp.sync import SyncModel, with_batch_size

if TYPE_CHECKING:
    from wbsp.simulate.training import Experiment

CLUSTER_FILE = "cluster.toml"  # a copy in each run's folder


@dataclass(frozen=True)
class Plan:
    """What runs that are compared have in common.

    experiment:   what is trained; None: no tensors, time alone
    stop_samples: over all workers; until: virtual seconds; target: accuracy, 0..1. The first to be
                  reached ends a run.
    settings:     for run.json
    """

    cluster: ClusterSpec
    experiment: Experiment | None
    batch_size: int
    stop_samples: float = INF
    until: float = INF
    target: float = INF
    check_period: float = 5.0
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def model_bytes(self) -> float:
        """Of one update and of one version on the wire."""
        if self.cluster.model_bytes is not None:
            return self.cluster.model_bytes
        return self.experiment.model_bytes if self.experiment else 0.0


def simulate(plan: Plan, sync: type[SyncModel], options: dict[str, Any], seed: int,
             folder: Path, progress: Progress) -> Run:
    """Run a model of class `sync` and leave the run's files in `folder`, an empty one.

    Raises ValueError for bad options, step times or batch sizes; RuntimeError if workers
    wait for something that will never happen.
    """
    description, experiment = plan.cluster, plan.experiment
    options = with_batch_size(sync, plan.batch_size, options)
    model = sync(**options)
    micro_batches = model.rule.micro_batches
    batch_size, rest = divmod(plan.batch_size, micro_batches)
    if rest:
        raise ValueError(f"batch_size={plan.batch_size} does not divide into the {micro_batches} "
                         f"micro-batches of {sync.name}; choose a multiple")
    write_settings(folder, {"sync": sync.name, "options": options, "clock": "virtual", "seed": seed,
                            "workers": description.size, "model_bytes": plan.model_bytes,
                            **plan.settings})
    if description.text is not None:
        (folder / CLUSTER_FILE).write_text(description.text, encoding="utf-8")
    if experiment is None:
        workload, epoch_steps = TimingWorkload(batch_size), 0
    else:
        workload = experiment.workload(seed, description.size, micro_batches)
        epoch_steps = max(1, experiment.size // batch_size)
    accuracy = None

    def evaluate(snapshot: Snapshot) -> dict[str, float]:
        nonlocal accuracy
        metrics = experiment.evaluate(workload, snapshot.vector)
        accuracy = metrics["accuracy"]
        recorder.server.evaluation(
            cluster.clock.now, snapshot.version, metrics["loss"], accuracy, metrics["top5"],
            cluster.engine.members, dict(enumerate(cluster.reports)))
        return metrics

    def said() -> str:
        known = "" if accuracy is None else f", accuracy {accuracy:.4f}"
        return f"version {cluster.engine.store.latest.version:,}{known}"

    def heard(now: float) -> None:
        done = max(cluster.engine.samples / plan.stop_samples, now / plan.until)
        progress.update(now, min(done, 1.0), said())

    recorder = Recorder(folder, sync.name, description.size, epoch_steps, heard)
    try:
        cluster = Cluster(
            model, description.machines(seed), workload, model_bytes=plan.model_bytes,
            ingress=description.ingress, egress=description.egress,
            apply_seconds=description.apply, detect_seconds=description.detect,
            stop_samples=plan.stop_samples, evaluate=evaluate if experiment else None,
            check_period=plan.check_period, target=plan.target, log=recorder.server.event,
            observer=recorder)
        cluster.run(plan.until)
        ended, reason = cluster.ended, cluster.engine.stop_reason or "all workers finished"
        if ended is None:
            ended, reason = plan.until, f"virtual second {plan.until:g} reached"
            measured = cluster.evaluations[-1].version if cluster.evaluations else None
            if experiment and cluster.engine.store.latest.version != measured:
                evaluate(cluster.engine.store.latest)
        recorder.server.summary(ended, cluster.engine.members, dict(enumerate(cluster.reports)),
                                cluster.engine.store.latest.version, accuracy, reason)
        progress.end(ended, said())
    finally:
        recorder.close()
    return read_run(folder)
