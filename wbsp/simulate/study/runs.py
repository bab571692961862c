"""One simulated run, from its plan to a folder like that of a real run.

The folder holds no real time, so that equal runs leave equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from wbsp import __version__
from wbsp.core.goal import Goal
from wbsp.core.messages import SharedData
from wbsp.core.outer_optimizer import OuterOptimizer, outer_of
from wbsp.core.stats import Lane, Phase, Report
from wbsp.core.store import Snapshot
from wbsp.runlog.folder import write_settings
from wbsp.runlog.reader import Run, read_run
from wbsp.runlog.server import ServerLog
from wbsp.runlog.worker import WorkerLog
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.nodes.server import Evaluator
from wbsp.simulate.nodes.site import Site
from wbsp.simulate.nodes.worker import Observer
from wbsp.simulate.study.progress import Progress
from wbsp.simulate.study.spec import ClusterSpec
from wbsp.simulate.study.variants import Variant
from wbsp.simulate.workloads.base import Experiment, TimingWorkload, Vector, Workload
from wbsp.simulate.world.machine import INF
from wbsp.sync import SyncModel, with_batch_size
from wbsp.tensors.codecs import parse

CLUSTER_FILE = "cluster.toml"  # a copy in each run's folder
MOST_LOGS = 100  # workers with their own files; of a larger cluster, evenly chosen ones


@dataclass(frozen=True)
class Plan:
    """The plan that all compared runs share.

    A run ends when it reaches the first of `stop_samples`, `until` and `target`, or has trained all
    epochs of `data`.

    Attributes:
        experiment: network and data; None: no tensors.
        stop_samples: over all workers.
        until: virtual seconds.
        target: a metric and its value; None: none ends a run.
        check_period: virtual seconds between two evaluations.
        check_growth: part of the elapsed time that replaces `check_period` when it is longer.
        outer: name of the outer step; None: each model's own.
        outer_options: of the outer step.
        wire: format of updates and versions; None: each model's own.
        settings: for run.json.
        mean_steps: the schedule of the learning rate counts the steps of the mean worker, as each
            worker knows them, in place of its own.
        data: that all workers share; each run has a `batch` and `seed` of its own. None: each
            worker draws batches without end.
        inside: the model within each site, which has a server of its own; None: one star.
    """

    cluster: ClusterSpec
    experiment: Experiment | None
    batch_size: int
    stop_samples: float = INF
    until: float = INF
    target: Goal | None = None
    check_period: float = 5.0
    check_growth: float = 0.0
    outer: str | None = None
    outer_options: dict[str, Any] = field(default_factory=dict)
    wire: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    mean_steps: bool = False
    data: SharedData | None = None
    inside: Variant | None = None

    def of(self, variant: Variant) -> Plan:
        """Return the plan for a variant, which may have a format and an outer step of its own.

        Raises:
            ValueError: an outer step is bad, or it has servers at sites, which the cluster or the
                data do not allow.
        """
        inside = variant.inside
        if inside is not None:
            if not self.cluster.sites:
                raise ValueError(f"--sync={inside.sync.name}/{variant.sync.name} needs sites: give "
                                 "a --cluster file with [[sites]]")
            inside = replace(inside, outer=inside.outer or self.outer,
                             outer_options=self.outer_options | inside.outer_options,
                             wire=inside.wire or self.wire)
            site_step(inside, 1)  # refuses a bad one before any run
        own = replace(self, outer=variant.outer or self.outer,
                      outer_options=self.outer_options | variant.outer_options,
                      wire=variant.wire or self.wire, inside=inside)
        outer_step(own, variant.sync)  # as that of a site
        return own

    @property
    def model_bytes(self) -> float:
        """Bytes of one update and of one version as float32."""
        if self.cluster.model_bytes is not None:
            return self.cluster.model_bytes
        return self.experiment.model_bytes if self.experiment else 0.0


class Recorder(Observer):
    """Writer of a run's files: those of the server, and of at most `MOST_LOGS` workers.

    Args:
        epoch_steps: steps of one worker's pass over the training set; 0: no training set, and no
            files for TensorBoard.
        on_step: called with the virtual time at each step's end.
    """

    def __init__(self, folder: Path, sync: str, workers: int, epoch_steps: int,
                 on_step: Callable[[float], None]):
        self.server = ServerLog(folder, sync, tensorboard=epoch_steps > 0, virtual=True)
        logs = min(workers, MOST_LOGS)
        picked = (i * workers // logs for i in range(logs))
        self._workers = {worker: WorkerLog(folder, worker, sync) for worker in picked}
        self._computed = dict.fromkeys(self._workers, 0.0)  # seconds, up to the last step
        self._epoch_steps, self._on_step = epoch_steps, on_step

    def span(self, worker: int, lane: Lane, kind: Phase, start: float, end: float) -> None:
        if worker in self._workers:
            self._workers[worker].span(lane, kind, start, end)

    def step(self, worker: int, now: float, loss: float, report: Report) -> None:
        self._on_step(now)
        if worker in self._workers:
            computed = report.seconds["compute"]
            step = report.steps - 1
            self._workers[worker].step(now, step % self._epoch_steps if self._epoch_steps else step,
                                       report, computed - self._computed[worker])
            self._computed[worker] = computed

    def close(self) -> None:
        self.server.close()
        for log in self._workers.values():
            log.close()


def create_model(sync: type[SyncModel], options: dict[str, Any], batch_size: int) -> SyncModel:
    """Return a model of class `sync` for mini-batches of `batch_size` examples.

    Raises:
        ValueError: an option is bad, or the size does not divide into the model's micro-batches.
    """
    model = sync(**with_batch_size(sync, batch_size, options))
    parts = model.rule.micro_batches
    if batch_size % parts:
        raise ValueError(f"--batch_size={batch_size} does not divide into the {parts} "
                         f"micro-batches of {sync.name}; choose a multiple")
    return model


def make_cluster(plan: Plan, sync: type[SyncModel], options: dict[str, Any], seed: int,
                 workload: Workload, **more: Any) -> Cluster:
    """Return the cluster of a plan under a model of class `sync`, not begun.

    Args:
        plan: of the run.
        sync: the model; with servers at sites, that between them.
        options: of the model.
        seed: of the step times.
        workload: what the workers train.
        **more: further arguments of `Cluster`.

    Raises:
        ValueError: an option or batch size is bad.
    """
    spec, inside = plan.cluster.trains(plan.batch_size), plan.inside
    sites: list[Site] = []
    if inside is not None:
        for place, one in enumerate(spec.sites):
            workers = [index for index, (group, _) in enumerate(spec.places) if group.site == place]
            if workers:
                sites.append(Site(
                    workers, create_model(inside.sync, inside.options, plan.batch_size),
                    one.machine(place), one.server,
                    site_step(inside, len(workers)),
                    parse(inside.wire or inside.sync.wire)))
    return Cluster(create_model(sync, options, plan.batch_size),
                   spec.machines(seed, within=bool(sites)), workload, spec.server,
                   model_bytes=plan.model_bytes, wire=parse(plan.wire or sync.wire), sites=sites,
                   **more)


def outer_step(plan: Plan, sync: type[SyncModel]) -> OuterOptimizer:
    """Return a new outer step of a model of class `sync`; with servers at sites, of that between
    them."""
    spec = plan.cluster
    peers = spec.size if plan.inside is None else sum(
        spec.workers_at(site) > 0 for site in range(len(spec.sites)))
    return outer_of(sync, peers, plan.outer, plan.outer_options)


def site_step(inside: Variant, workers: int) -> OuterOptimizer:
    """Return a new outer step for the server of a site with this number of workers."""
    return outer_of(inside.sync, workers, inside.outer, inside.outer_options)


def step_size(plan: Plan, sync: type[SyncModel], options: dict[str, Any]) -> int:
    """Return the examples of a step, which may be a part of a mini-batch.

    Raises:
        ValueError: as `create_model`.
    """
    if plan.inside is not None:  # its rule is the workers'
        sync, options = plan.inside.sync, plan.inside.options
    model = create_model(sync, options, plan.batch_size)
    return plan.batch_size // model.rule.micro_batches


def simulate(plan: Plan, sync: type[SyncModel], options: dict[str, Any], seed: int,
             folder: Path, progress: Progress) -> Run:
    """Run a model of class `sync`, and write the run's files into the empty `folder`.

    Raises:
        ValueError: an option, step time or batch size is bad.
        RuntimeError: workers wait for an event that will never happen.
    """
    spec, experiment = plan.cluster, plan.experiment
    batch_size = step_size(plan, sync, options)
    data = plan.data and plan.data._replace(batch=batch_size, seed=seed)
    outer = outer_step(plan, sync)
    wire = parse(plan.wire or sync.wire)
    write_settings(folder, {"sync": sync.name,
                            "options": with_batch_size(sync, plan.batch_size, options),
                            "clock": "virtual", "release": __version__, "seed": seed,
                            "workers": spec.size, "model_bytes": plan.model_bytes,
                            **({} if wire.lossless else {"wire": wire.name}), **outer.settings(),
                            **({"shared_data": {"examples": data.n, "epochs": data.epochs}}
                               if data else {}),
                            **({"sites": len(spec.sites)} if spec.sites else {}),
                            **({"within": plan.inside.label} if plan.inside else {}),
                            **plan.settings})
    if spec.text is not None:
        (folder / CLUSTER_FILE).write_text(spec.text, encoding="utf-8")

    most = min(plan.stop_samples, data.n * data.epochs) if data else plan.stop_samples

    def mean_steps(worker: int) -> int:
        return cluster.workers[worker].agent.run_steps // cluster.mates(worker)

    def done(worker: int) -> float:
        whole = cluster.workers[worker].agent.run_examples * spec.size / cluster.mates(worker)
        return min(1.0, whole / most)

    def evaluate(measure: Callable[[Vector], dict[str, float]],
                 snapshot: Snapshot) -> dict[str, float]:
        metrics = measure(snapshot.vector)
        others = {name: value for name, value in metrics.items()
                  if name not in ("loss", "accuracy", "top5")}
        recorder.server.evaluation(
            cluster.clock.now, snapshot.version, metrics.get("loss"), metrics.get("accuracy"),
            metrics.get("top5"), cluster.members, dict(enumerate(cluster.reports)), others)
        return metrics

    def newest() -> dict[str, float]:
        return cluster.evaluations[-1].metrics if cluster.evaluations else {}

    def state() -> str:
        shown = plan.target or Goal.usual(plan.settings)
        known = shown.value(newest())
        version = f"version {cluster.engine.store.latest.version:,}"
        return version if known is None else f"{version}, {shown.metric} {known:.4f}"

    def on_step(now: float) -> None:
        done = max(cluster.engine.samples / most, now / plan.until)
        progress.update(now, min(done, 1.0), state())

    workload: Workload = TimingWorkload(batch_size)
    trained, evaluator, epoch_steps = None, None, 0
    if experiment is not None:
        workload = trained = experiment.workload(seed, spec.size, plan.batch_size // batch_size,
                                                 mean_steps if plan.mean_steps else None, done)
        evaluator = Evaluator(partial(evaluate, partial(experiment.evaluate, trained)),
                              plan.check_period, plan.check_growth, plan.target)
        epoch_steps = max(1, experiment.size // batch_size)
    recorder = Recorder(folder, sync.name, spec.size, epoch_steps, on_step)
    try:
        cluster = make_cluster(
            plan, sync, options, seed, workload, stop_samples=plan.stop_samples, outer=outer,
            evaluator=evaluator, log=recorder.server.event, observer=recorder, data=data)
        over = cluster.run(plan.until)
        ended, reason = cluster.ended, cluster.engine.stop_reason or "all workers finished"
        if ended is None:
            ended, reason = ((cluster.clock.now, "no worker is left") if over else
                             (plan.until, f"virtual second {plan.until:g} reached"))
            if evaluator is not None:
                evaluator.measure(ended, cluster.engine.store.latest)
        if spec.sites or not wire.lossless:
            lines = {"lines": sum(cluster.moved.values())} if spec.sites else {}
            recorder.server.event(ended, "traffic", pushed=cluster.pushed, fetched=cluster.fetched,
                                  **lines)
        recorder.server.summary(ended, cluster.members, dict(enumerate(cluster.reports)),
                                cluster.engine.store.latest.version, newest().get("accuracy"),
                                reason)
        progress.end(ended, state())
    finally:
        recorder.close()
    return read_run(folder)
