"""Flags of `python -m wbsp.simulate` for comparisons of many models: options of one model alone,
no figures, evaluation on a part of the test set."""

import re
from pathlib import Path

import forked
import pytest
from finished import simulate

from wbsp.runlog.reader import read_run
from wbsp.simulate.study import advice
from wbsp.simulate.study.spec import ClusterSpec, Group
from wbsp.simulate.study.variants import variants
from wbsp.simulate.world.server import ServerSpec
from wbsp.sync import MODELS

ROOT = Path(__file__).parents[3]
TIMING = ("--model=timing", "--max_steps=40", "--nofigures", "--out=o")


def test_an_option_may_be_that_of_one_model_alone(tmp_path):
    done = simulate(tmp_path, *TIMING, "--sync=wbsp,pcc,ssp", "--sync_option=pcc.commit=every_push",
                   "--sync_option=commit=slowest", "--sync_option=ssp.s=7")
    assert done.returncode == 0, done.stderr
    options = {sync: read_run(tmp_path / f"o/{sync}/run-001").settings["options"]
               for sync in ("wbsp", "pcc", "ssp")}
    assert options == {"wbsp": {"commit": "slowest"}, "pcc": {"commit": "every_push"},
                       "ssp": {"s": "7"}}
    assert not (tmp_path / "o/figures").exists()


def test_a_model_may_be_compared_with_itself_under_other_options(tmp_path):
    done = simulate(tmp_path, *TIMING, "--sync=pcc,pcc:weight=work:commit=every_push,saps:s=3,pcc",
                   "--sync_option=commit=slowest", "--sync_option=pcc.trigger=slowest", "--seeds=2")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "o"
    options = {str(path.parent.relative_to(out)): read_run(path.parent).settings["options"]
               for path in out.glob("*/*/run.json")}
    assert set(options) == {f"{name}/run-00{n}" for n in (1, 2) for name in (
        "pcc", "pcc-commit=every_push-weight=work", "saps-s=3")}
    assert options["pcc/run-002"] == {"commit": "slowest", "trigger": "slowest"}
    assert options["pcc-commit=every_push-weight=work/run-001"] == {
        "commit": "every_push", "trigger": "slowest", "weight": "work"}
    rows = [line.split(" | ")[0].removeprefix("| ") for line in done.stdout.splitlines()]
    assert rows[2:] == ["pcc commit=slowest trigger=slowest",
                        "pcc commit=every_push trigger=slowest weight=work", "saps s=3"]
    assert "pcc commit=every_push trigger=slowest weight=work, seed 1: 100%" in done.stderr


@pytest.mark.parametrize("given, label", [
    ([], "adsp period=2"),
    (["--sync_option=adsp.period=7"], "adsp period=7"),
    (["--sync_option=period=8"], "adsp period=8"),
    (["--model_bytes=125MB"], "adsp period=10"),
])
def test_an_advice_scales_the_period_of_adsp_unless_it_is_given(tmp_path, given, label):
    done = simulate(tmp_path, f"--advise={ROOT}/scripts/clusters/h1.toml", "--sync=adsp", *TIMING,
                   *given)
    assert done.returncode == 0, done.stderr
    assert f"| - | {label} |" in done.stdout


@pytest.mark.parametrize("given, labels", [
    ([], ["decoupled tau=50", "fedasync tau=50", "localsgd tau=50"]),  # 10.22 s, of steps of 0.2 s
    (["--sync_option=localsgd.tau=3"], ["decoupled tau=50", "fedasync tau=50", "localsgd tau=3"]),
])
def test_an_advice_scales_local_steps_unless_they_are_given(tmp_path, given, labels):
    done = simulate(tmp_path, "--advise=wan", "--sync=decoupled,fedasync,localsgd", *TIMING, *given)
    assert done.returncode == 0, done.stderr
    assert sorted(line.split(" | ")[1] for line in done.stdout.splitlines()
                  if line.startswith("| - |")) == labels


def test_local_steps_last_as_long_as_the_transfers_of_all():
    line = {"up": 10.0, "down": 5.0}
    spec = ClusterSpec((Group(4, step_seconds=0.1, **line),), ServerSpec(ingress=20.0, egress=20.0))
    assert advice.steps_between(spec, 6.0) == 20  # 4 * 6 / 20 there and back, 2.4 s; alone 1.8 s
    assert advice.steps_between(spec, 0.01) == 1
    assert advice.steps_between(ClusterSpec((Group(4),)), 6.0) is None


def test_an_advice_checks_as_often_as_its_cluster_is_fast():
    quick, slow = (ClusterSpec((Group(4, step_seconds=step),)) for step in (0.01, 36.0))
    assert advice.check_period(quick, 2000) == 0.025  # 5 s of pure computing
    assert advice.check_period(slow, 2000) == 90
    assert advice.check_period(ClusterSpec((Group(),)), 2000) is None
    assert {"pcc:weight=work", "asp:overlap=true", "nbsync:merge=add", *MODELS} == set(advice.SYNC)


def test_advice_gives_the_best_number_of_shards(tmp_path):
    (tmp_path / "wide.toml").write_text("""
        model_bytes = "10MB"
        [server]
        bandwidth = "20MB"  # a quarter of what the workers' lines carry
        [[workers]]
        count = 8
        step_seconds = "0.1s"
        bandwidth = "10MB"
        """)
    done = simulate(tmp_path, "--advise=wide.toml", "--sync=bsp,adsp", "--shards=8,1,4", *TIMING)
    assert done.returncode == 0, done.stderr
    # A round of bsp with 1 and with 4 and more shards: 0.1 + 2 * 80 / 20 and 0.1 + 2 * 10 / 10 s.
    # A cycle of adsp is alone on its lines, and these are narrower than one server.
    rows = [line.split(" | ")[1] for line in done.stdout.splitlines() if line.startswith("| - |")]
    assert sorted(rows) == sorted(
        f"{model} shards={count}" for model in ("bsp", "adsp period=8") for count in (1, 4, 8))
    lines = [line for line in done.stdout.splitlines() if ": best with " in line]
    assert lines[0].startswith("- bsp: best with 4 shards, 3.") and len(lines) == 2
    assert lines[0].endswith("; more gain nothing") and "(1: 1." in lines[0]
    assert "Best: " not in done.stdout  # no time to an accuracy to choose a model by
    shards = {path.parents[1].name: read_run(path.parent).settings["shards"]
              for path in (tmp_path / "o").glob("*/*/run.json")}
    assert shards == {f"{model}-shards={count}": count for model in ("bsp", "adsp")
                      for count in (1, 4, 8)}


def test_shards_of_a_cluster_file_are_those_of_its_runs(tmp_path):
    (tmp_path / "two.toml").write_text("[server]\nshards = 2\napply_seconds = '8ms'\n"
                                       "[[workers]]\nstep_seconds = '0.1s'\n")
    done = simulate(tmp_path, "--cluster=two.toml", "--sync=bsp", *TIMING)
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "o/bsp/run-001")
    assert run.settings["shards"] == 2 and "best with" not in done.stdout
    assert run.summary["t"] == pytest.approx(40 * (0.1 + 8e-3 / 2))


SITES = """
model_bytes = "10MB"
[[sites]]
[[sites.workers]]
count = 2
step_seconds = "0.1s"
[[sites]]
bandwidth = "10MB"
[[sites.workers]]
count = 2
step_seconds = "0.1s"
"""


def test_a_star_and_servers_at_sites_are_compared_in_one_table(tmp_path):
    (tmp_path / "sites.toml").write_text(SITES)
    done = simulate(tmp_path, "--cluster=sites.toml", "--model=timing", "--max_steps=160",
                   "--nofigures", "--out=o",
                   "--sync=bsp,bsp:wire=int8,bsp/bsp,asp/localsgd:tau=5:wire=topk:0.01:outer=nesterov")
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    assert rows[0][-1] == "on the lines"
    found = {row[0]: (float(row[1]), row[-1]) for row in rows[2:]}
    assert list(found) == ["bsp", "bsp wire=int8", "bsp / bsp",
                           "asp / localsgd tau=5 outer=nesterov wire=topk:0.01"]
    # 40 rounds of a step, two pushes and two fetches through the line; or of one of each, and a
    # last step and push of a worker that had its version before it was told to stop.
    assert found["bsp"] == (pytest.approx(40 * (0.1 + 4), rel=0.01), "1.63 GB")
    assert found["bsp / bsp"] == (pytest.approx(40 * (0.1 + 2) + 1.1), "840 MB")
    assert found["bsp wire=int8"][0] < found["bsp"][0] / 3
    runs = {path.parents[1].name: read_run(path.parent) for path in
            (tmp_path / "o").glob("*/*/run.json")}
    assert sorted(runs) == ["asp_localsgd-tau=5-outer=nesterov-wire=topk_0.01", "bsp",
                            "bsp-wire=int8", "bsp_bsp"]
    settings = runs["asp_localsgd-tau=5-outer=nesterov-wire=topk_0.01"].settings
    assert (settings["sync"], settings["within"], settings["sites"]) == ("localsgd", "asp", 2)
    assert settings["outer"]["name"] == "nesterov" and settings["wire"] == "topk:0.01"
    assert "within" not in runs["bsp"].settings and runs["bsp"].settings["sites"] == 2
    again = simulate(tmp_path, "--cluster=sites.toml", "--model=timing", "--max_steps=160",
                    "--nofigures", "--out=p", "--sync=bsp/bsp")
    assert again.returncode == 0
    one, two = (tmp_path / folder / "bsp_bsp/run-001/events.jsonl" for folder in "op")
    assert one.read_bytes() == two.read_bytes()


def test_a_model_may_have_options_of_the_outer_step_of_its_own(tmp_path):
    done = simulate(tmp_path, *TIMING, "--outer_option=momentum=0.5",
                   "--sync=auto,auto:outer.rate=3,bsp:outer=nesterov:outer.momentum=0.25")
    assert done.returncode == 0, done.stderr
    usual, faster, bsp = (
        read_run(tmp_path / f"o/{name}/run-001").settings["outer"] for name in
        ("auto", "auto-outer.rate=3", "bsp-outer=nesterov-outer.momentum=0.25"))
    assert usual["momentum"] == faster["momentum"] == 0.5 and bsp["momentum"] == 0.25
    assert usual["rate"] == 2 and faster["rate"] == 3 and bsp["rate"] == 0.7
    assert "| auto outer.rate=3 |" in done.stdout


def test_outer_options_in_another_order_are_the_same_variant():
    one, = variants(["auto:outer.rate=3:outer.nu=0.5", "auto:outer.nu=0.5:outer.rate=3"], [])
    assert one.folder == "auto-outer.nu=0.5-outer.rate=3"


def test_an_advice_compares_one_star_with_servers_at_sites(tmp_path):
    (tmp_path / "sites.toml").write_text(SITES)
    done = simulate(tmp_path, "--advise=sites.toml", *TIMING[:1], "--max_steps=400", *TIMING[2:])
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ")[1] for line in done.stdout.splitlines() if line.startswith("| - |")]
    pairs = [row for row in rows if " / " in row]
    # A quarter of 10 MB through 10 MB/s, both ways, takes five steps.
    assert sorted(pairs) == ["auto / localsgd tau=5 wire=int8", "pcc / auto",
                             "pcc / localsgd tau=5 outer=nesterov wire=int8"]
    assert len(rows) == len(advice.SYNC) + 3
    [said] = [line for line in done.stdout.splitlines() if line.startswith("Servers at the sites")]
    assert re.fullmatch(r"Servers at the sites: best (auto|pcc) / .* \(within / between\), [\d.]+ "
                        r"mini-batches/s, .* on the lines\. One star: best \S+.*, [\d.]+ "
                        r"mini-batches/s, .*B\. .*", said)
    shared = simulate(tmp_path, "--advise=sites.toml", "--model=timing", "--shared_data",
                     "--examples=640", "--epochs=1", "--nofigures", "--out=p", "--sync=bsp,bsp/bsp",
                     "--verbose")
    assert shared.returncode == 0, shared.stderr
    assert "| bsp / bsp |" in shared.stdout


@pytest.mark.parametrize("flags, words", [
    (["--sync=bsp/bsp"], "--sync=bsp/bsp needs sites: give a --cluster file with [[sites]]"),
    (["--sync=bsp/lbbsp"], "--sync=bsp/lbbsp: the server above runs lbbsp, which assigns the exam"),
    (["--sync=bsp/bsp/bsp"], "--sync=bsp/bsp/bsp: sites have one server above; give MODEL/MODEL"),
    (["--sync=bsp/ssp:t=7"], "ssp: unknown option 't'; known: s, refresh"),
    (["--sync=bsp:wire=int4"], "wire='int4' is not a format"),
    (["--sync=bsp:outer=adam"], "unknown outer optimizer 'adam'"),
    (["--sync=bsp,auto:outer.speed=8"], "outer step qhm: unknown option 'speed'; known: rate"),
    (["--sync=bsp,bsp:outer.rate=8"], "outer step identity: unknown option 'rate'; known: none"),
    (["--sync=bsp,auto:outer.rate=-8"], "outer step qhm: option rate=-8"),
    (["--sync=bsp", "--shards=2,0"], "--shards=2,0 is not a list of numbers"),
    (["--sync=bsp", "--shards="], "--shards= is not a list of numbers; give numbers of 1 or more"),
    (["--sync=bsp", "--shards=2,65"], "--shards=2,65: a server has at most 64 shards"),
    (["--sync=bsp", "--jitter=inf"], "--jitter=inf must be a finite number"),
    (["--sync=bsp", "--model=small", "--lr=nan"], "--lr=nan must be a finite number"),
    (["--sync=bsp", "--model=small", "--epochs=nan"], "--epochs=nan must be a finite number"),
    (["--sync=bsp", "--sync_option=ssp.s=7"], "ssp is not among the models of --sync: bsp"),
    (["--sync=bsp,ssp", "--sync_option=bsp.s=7"], "bsp: unknown option 's'"),
    (["--sync=ssp", "--sync_option=ssp.t=7"], "ssp: unknown option 't'; known: s, refresh"),
    (["--sync=bsp,ssp:t=7"], "ssp: unknown option 't'; known: s, refresh"),
    (["--sync=bsp,ssp:s=-7"], "ssp: option s=-7 is below 0"),
    (["--sync=bsp", "--test_images=9"], "--test_images needs a network"),
])
def test_bad_input_is_refused_in_one_line(tmp_path, flags, words):
    done = simulate(tmp_path, *TIMING, *flags)
    assert done.returncode == 1
    assert words in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("counted, slow_ones", [
    pytest.param("own", 4, marks=pytest.mark.long), ("mean", 1)])
def test_the_schedule_counts_own_steps_or_those_of_the_mean_worker(jobs, counted, slow_ones):
    """After 4 steps the rate is 0; a worker knows the others' steps from its answers."""
    jobs.start("simulate", "-m", "wbsp.simulate", "--sync=asp", "--heterogeneity=H1",
               "--step_seconds=20ms", "--model=small", "--dataset=shapes10", "--test_images=50",
               "--max_steps=135", "--lr_decays=3:0", f"--lr_steps={counted}",
               "--check_period=0.2s", "--nofigures", "--out=o", fork=forked.KERAS).ends_well()
    run = read_run(jobs.folder / "o/asp/run-001")
    assert run.settings["lr_steps"] == counted
    of_slow = [event["t"] for event in run.events if event["kind"] == "accept"
               and event["worker"] == 1]
    losses = list(zip(run.evaluations.t.tolist(), run.evaluations.loss.tolist(), strict=True))
    assert len(of_slow) > 4
    after = {loss for t, loss in losses if t >= of_slow[slow_ones - 1]}
    before = {loss for t, loss in losses if of_slow[0] - 0.2 < t < of_slow[slow_ones - 1]}
    assert len(after) == 1 and before and not after & before, "it trains so long, and no longer"


def test_evaluation_on_a_part_of_the_test_set():
    from wbsp.simulate.workloads.keras import Experiment

    whole = Experiment("small", "shapes10", 128)
    size = sum(len(labels) for _, labels in whole._test)
    parts = [Experiment("small", "shapes10", 128, test_images=images) for images in (50, 50, size)]
    workload = whole.workload(3, 1)
    vector = workload.initial()
    first, again, everything = (
        part.evaluate(part.workload(3, 1), vector)["accuracy"] for part in parts)
    assert first == again and 50 * first == pytest.approx(round(50 * first))
    assert everything == pytest.approx(whole.evaluate(workload, vector)["accuracy"])
    with pytest.raises(ValueError, match=f"the test set of shapes10 has {size}"):
        Experiment("small", "shapes10", 128, test_images=size + 1)
