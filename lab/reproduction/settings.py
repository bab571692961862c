"""The settings of the report, in the order of importance.

A setting is a cluster and a training on it, given as flags of `python -m wbsp.simulate`; all its
models are compared. A page is a chapter of the report.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from wbsp.sync import MODELS

# Where a model's published or default options do not suit runs of a minute. Labels show them.
OPTIONS = {
    "ssp": {"s": 3},  # of the order of Ho et al.; the published runner's 40 is in the core runs
    "adsp": {"period": 2},  # published: 60 s, for runs of an hour
}
# A step and an update of the published networks: 148,298 and 1,783,562 parameters.
CNN = {"step_seconds": "20ms", "model_bytes": 593192}
ALEXNET = {"step_seconds": "50ms", "model_bytes": 7134248}
SMALL = {"model": "small", "dataset": "cifar10", "test_images": 2000, "jitter": 0.1}
WAN = {"workers": 4, "heterogeneity": "H1", "step_seconds": "220ms", "jitter": 0.1,
       "bandwidth": "100Mbit", "server_bandwidth": "none", "latency": "5ms"}
RTTS = (0.4, 0.8, 1.2, 1.8)  # a push and a fetch, in steps of the slowest worker
LOOKS = (30, 60, 120, 240)  # ElasticBSP's R beside its 15


@dataclass(frozen=True)
class Setting:
    """One setting.

    page, name: the folder of its runs; title: its name in the report
    flags:      of wbsp.simulate; models: their names; options: model -> its options
    cost:       estimated seconds of a run on one core, for the first estimate of the time left
    """

    page: str
    name: str
    title: str
    flags: dict[str, object]
    models: tuple[str, ...]
    options: dict[str, dict[str, object]] = field(default_factory=lambda: OPTIONS)
    cost: float = 20.0

    @property
    def target(self) -> float:
        """Accuracy that ends a run, 0..1; infinite without one."""
        return float(self.flags.get("target_accuracy", "inf"))

    def arguments(self, models: Iterable[str], seed: int) -> list[str]:
        """Arguments of wbsp.simulate, without --out, for the runs of some of the models."""
        models = list(models)
        return [f"--sync={','.join(models)}",
                *(f"--sync_option={model}.{key}={value}" for model in models
                  for key, value in self.options.get(model, {}).items()),
                *(f"--{key}={value}" for key, value in self.flags.items()),
                f"--seed={seed}", "--nofigures"]

    def command(self, models: Iterable[str] | None = None, seed: int = 0) -> str:
        """Return the command line with which a reader can repeat the runs."""
        return " ".join(["python -m wbsp.simulate",
                         *self.arguments(self.models if models is None else models, seed)])


Runs = list[tuple[Setting, int]]  # with their seeds


def full() -> tuple[Runs, Runs]:
    """Return all settings, in an order that can be cut anywhere: first one seed of the published
    experiment, of the other papers' settings and of all clusters, and more of the published
    experiment; then (after the real processes) the rest.
    """
    *clusters, large = wide(0.4, SMALL)
    published, own = core(0.4, 2, "100Mbit"), grounds(0.4, SMALL)
    first = [(published, [0]), (own, [0]), (clusters, [0]), (published, [1, 2])]
    eight = [*core(0.3, 8, "100Mbit"), *core(0.3, 8, "1Gbit")]
    *rated, rated_cnn = rates(SMALL)
    ends = accuracy(SMALL)
    last = [(own, [1, 2]), (core(0.4, 2, "1Gbit"), [0, 1, 2]), (rated, [0, 1, 2]),
            (eight, [0, 1, 2]), ([rated_cnn], [0, 1, 2]), (clusters, [1, 2]),
            ([large], [0, 1, 2]), (ends, [0, 1, 2])]
    return tuple([(setting, seed) for settings, seeds in stages for seed in seeds
                  for setting in settings] for stages in (first, last))


def quick() -> tuple[Runs, Runs]:
    """Return a reduced version of some eight minutes on two cores: fewer settings, lower targets,
    one seed."""
    easy = {**SMALL, "test_images": 1000}
    settings = [*(s for s in wide(0.3, easy) if s.name in ("base", "none", "20mbit", "wan")),
                *(s for s in grounds(0.3, easy) if s.page != "drift"),
                *(s for s in core(0.35, 2, "100Mbit") if s.name.startswith("h1"))]
    return [(setting, 0) for setting in settings], []


def miniature() -> tuple[Runs, Runs]:
    """Return the runs that check the whole chain in a minute, without files to download."""
    drawn = {**SMALL, "dataset": "shapes10", "test_images": 200}
    base, ground = wide(0.3, drawn)[0], grounds(0.3, drawn)[0]
    base = replace(base, flags={**base.flags, "workers": 2, "max_steps": 300}, cost=3,
                   models=known("bsp", "pcc"))
    return [(base, 0), (ground, 0), (ground, 1)], []


# Of the real processes that train the published network to 60 %.
TO_60 = ("bsp", "ssp:s=40", "asp", "ssp:s=40:refresh=published", "asp:refresh=published", "wbsp",
         "pcc", "adsp:period=10", "nbsync", "pcc:weight=work", "pcc:weight=work:late=true")


def known(*names: str) -> tuple[str, ...]:
    """Return those names that are of models, or of models with options."""
    return tuple(name for name in names if name.partition(":")[0] in MODELS)


def wide(target: float, trained: dict) -> list[Setting]:
    """Return all models around H1, 8 workers, 100 Mbit, with one thing changed at a time."""
    base = {**trained, **CNN, "workers": 8, "heterogeneity": "H1", "bandwidth": "100Mbit",
            "latency": "1ms", "target_accuracy": target, "check_period": "0.5s",
            "max_steps": 8000}

    def changed(name: str, title: str, cost: float = 15, **flags: object) -> Setting:
        return Setting("wide", name, title, {**base, **flags}, tuple(MODELS), cost=cost)

    return [
        changed("base", "H1, 8 workers, 100 Mbit"),
        changed("workers-2", "2 workers", 8, workers=2, max_steps=3000),
        changed("none", "equal workers", heterogeneity="none", check_period="0.2s"),
        changed("h2", "H2", heterogeneity="H2", check_period="1s"),
        changed("h3", "H3", heterogeneity="H3", check_period="1.5s"),
        changed("1gbit", "1 Gbit", bandwidth="1Gbit", check_period="0.2s"),
        changed("20mbit", "20 Mbit", bandwidth="20Mbit", check_period="2s"),
        changed("alexnet", "AlexNet's bytes", **ALEXNET, check_period="5s"),
        # The setting of NBSync's paper: a round trip of 1.2 steps of the slow half.
        changed("wan", "WAN, 4 workers", **{**WAN, "model_bytes": 5_340_000}, check_period="1s",
                max_steps=4000),
        changed("workers-32", "32 workers", 60, workers=32, max_steps=24000, check_period="1s"),
    ]


def core(target: float, workers: int, bandwidth: str) -> list[Setting]:
    """Return the published experiment: its network, its sleeps, the models it compares."""
    flags = {"model": "cnn", "dataset": "cifar10", "test_images": 1000, "jitter": 0.1, **CNN,
             "workers": workers, "bandwidth": bandwidth, "latency": "1ms",
             "target_accuracy": target, "max_steps": 400 * workers}
    return [Setting("core", f"{sleeps.lower()}-{workers}-{bandwidth.lower()}",
                    f"CNN, {sleeps}, {workers} workers, {bandwidth[:-4]} {bandwidth[-4:]}",
                    {**flags, "heterogeneity": sleeps, "check_period": period},
                    known("bsp", "asp", "ssp", "wbsp", "pcc"), {"ssp": {"s": 40}},
                    cost=35 * workers)
            for sleeps, period in (("H1", "0.5s"), ("H2", "1s"), ("H3", "1.5s"))]


def rates(trained: dict) -> list[Setting]:
    """Other learning rates, 2 workers, where the order of asp, wbsp and pcc changes."""
    flags = {**trained, **CNN, "workers": 2, "heterogeneity": "H1", "latency": "1ms",
             "target_accuracy": 0.35, "check_period": "0.25s", "max_steps": 3000}
    models = known("asp", "wbsp", "pcc")
    cnn = core(0.4, 2, "1Gbit")[1]
    return [*(Setting("rate", f"{bandwidth.lower()}-{rate}",
                      f"{bandwidth[:-4]} {bandwidth[-4:]}, rate {rate}",
                      {**flags, "bandwidth": bandwidth, "lr": rate}, models, cost=8)
              for bandwidth in ("100Mbit", "1Gbit") for rate in (0.02, 0.05, 0.1, 0.2)),
            Setting("rate", "cnn-h2-0.02", "CNN, H2, 1 Gbit, rate 0.02",
                    {**cnn.flags, "lr": 0.02, "max_steps": 3000}, models, cost=120)]


def grounds(target: float, trained: dict) -> list[Setting]:
    """For each of the other papers, the setting that its model is made for."""
    return [*(_wan(rtt) for rtt in RTTS), *_balanced(), *_straggler(target, trained),
            *_mild(target, trained), *_many_steps(trained)]


def _wan(rtt: float) -> Setting:
    """NBSync's setting: a push and a fetch take `rtt` steps of the slow half, mostly for the bytes.

    A fast step of 220 ms fits three times into a slow one of 720 ms, queries of ESync included.
    """
    latency, rate = 0.005, 100e6 / 8
    size = round((rtt * 0.72 / 2 - latency) * rate)
    return Setting(
        "nbsync", f"rtt-{rtt:g}", f"round trip of {rtt:g} slow steps",
        {"model": "timing", **WAN, "model_bytes": size, "until": "600s"},
        known("bsp", "asp", "localsgd", "esync", "fedasync", "nbsync", "wbsp", "pcc"), cost=2)


def _balanced() -> Iterable[Setting]:
    """LB-BSP's settings: machines of unequal speeds, and of speeds that change with other load."""
    for name, title in (("stable", "unequal speeds"), ("changing", "changing speeds")):
        flags = {"model": "timing", "cluster": f"scripts/clusters/{name}.toml",
                 "model_bytes": 593192, "max_steps": 8000}
        yield Setting("lbbsp", name, title, flags,
                      known("bsp", "lbbsp", "elasticbsp", "asp", "wbsp", "pcc"), cost=4)
        for key, value in (("predictor", "last"), ("predictor", "ema"), ("controller", "gpu")):
            yield Setting("lbbsp", f"{name}-{value}", title, flags, known("lbbsp"),
                          {"lbbsp": {key: value}}, cost=4)
    yield Setting("lbbsp", "federated", "federated rounds, unequal speeds and lines",
                  {"model": "timing", "cluster": "scripts/clusters/federated.toml",
                   "model_bytes": 593192, "max_steps": 8000}, known("localsgd", "lbbsp"),
                  {"localsgd": {"tau": 10}, "lbbsp": {"controller": "federated"}}, cost=4)


def _straggler(target: float, trained: dict) -> Iterable[Setting]:
    """SaPS's setting: one of eight machines is four times slower."""
    flags = {**trained, "cluster": "scripts/clusters/one-slow.toml", "model_bytes": 593192,
             "target_accuracy": target, "check_period": "0.2s", "max_steps": 8000}
    flags.pop("jitter")
    title = "one of 8 is 4 times slower"
    yield Setting("saps", "straggler", title, flags,
                  known("bsp", "asp", "ssp", "saps", "ksync", "wbsp", "pcc"), cost=12)
    # A bound of 2 N is below the straggler's natural lag of 4 (N - 1).
    for policy, bounds in (("reject", {"s": 2}), ("preempt", {"s": 2, "h": 1})):
        yield Setting("saps", f"straggler-{policy}", title, flags, known("saps"),
                      {"saps": {"policy": policy, **bounds}}, cost=12)


def _mild(target: float, trained: dict) -> Iterable[Setting]:
    """ElasticBSP's setting: four machines that differ a little."""
    flags = {**trained, "cluster": "scripts/clusters/mild.toml", "model_bytes": 593192,
             "target_accuracy": target, "check_period": "0.2s", "max_steps": 4000}
    flags.pop("jitter")
    yield Setting("elasticbsp", "mild", "4 workers that differ a little", flags,
                  known("bsp", "asp", "ssp", "elasticbsp"), cost=12)


def accuracy(trained: dict) -> list[Setting]:
    """ElasticBSP's claim on the accuracy: the same number of mini-batches, some twenty passes over
    the training set; and its look-aheads, up to one that reaches over an eighth of the run."""
    flags = {**trained, "cluster": "scripts/clusters/mild.toml", "model_bytes": 593192,
             "check_period": "2s", "max_steps": 8000}
    flags.pop("jitter")
    title = "4 workers that differ a little, 8,000 mini-batches"
    return [Setting("accuracy", "mild", title, flags, known("bsp", "asp", "ssp", "elasticbsp"),
                    cost=80),
            *(Setting("accuracy", f"mild-r-{r}", title, flags, known("elasticbsp"),
                      {"elasticbsp": {"r": r}}, cost=80) for r in LOOKS)]


def _many_steps(trained: dict) -> Iterable[Setting]:
    """Yield a setting in which local steps hurt: with H3 and steps of 5 ms, one worker makes 300
    steps during one of the other."""
    flags = {**trained, "workers": 2, "heterogeneity": "H3", "step_seconds": "5ms",
             "model_bytes": 593192, "bandwidth": "1Gbit", "latency": "1ms", "until": "30s",
             "check_period": "1.5s"}
    title = "300 local steps a round"
    yield Setting("drift", "h3", title, flags, known("asp", "wbsp", "pcc", "nbsync"), cost=50)
    yield Setting("drift", "h3-add", title, flags, known("nbsync"), {"nbsync": {"merge": "add"}},
                  cost=50)
