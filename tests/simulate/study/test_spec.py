"""Specs of clusters, from TOML files and flags."""

from pathlib import Path

import pytest

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.study import worth
from wbsp.simulate.study.cluster_file import read_cluster
from wbsp.simulate.study.spec import Group, StepLaw, published
from wbsp.simulate.world.machine import INF, Incarnation, Line
from wbsp.simulate.world.server import ServerSpec
from wbsp.sync import create

CLUSTERS = sorted((Path(__file__).parents[3] / "scripts/clusters").glob("*.toml"))


def described(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return read_cluster(path)


FULL = """
model_bytes = "4MB"
[server]
bandwidth = "1Gbit"
egress = "2Gbit"
apply_seconds = "2ms"
detect_seconds = 3
[[workers]]
count = 2
step_seconds = "10ms"
latency = "1ms"
bandwidth = "100Mbit"
up = "20Mbit"
[[workers]]
step_seconds = 1
sleep_seconds = "0.5s"
changes = [{ at = 100, factor = 4 }, { at = "200s", factor = 1 }]
stalls = [{ from = 10, to = 20 }]
join = 5
lose = "1min"
"""


def test_the_keys_of_a_file_become_machines(tmp_path):
    cluster = described(tmp_path, FULL)
    assert (cluster.size, cluster.model_bytes) == (3, 4e6)
    assert (cluster.server.ingress, cluster.server.egress) == (125e6, 250e6)
    assert (cluster.server.apply_seconds, cluster.server.detect_seconds) == (2e-3, 3.0)
    a, b, late = cluster.machines(seed=0)
    assert a.seconds(0, 0.0) == b.seconds(0, 0.0) == 0.01
    assert (a.latency, a.up, a.down) == (1e-3, 2.5e6, 12.5e6)
    assert late.incarnations == (Incarnation(5.0, 60.0, lost=True),)
    assert (late.up, late.down) == (INF, INF)
    # a sleep does not get longer when the machine gets slower; a stall adds what is left of it
    assert [late.seconds(0, t) for t in (0.0, 9.0, 100.0, 250.0)] == [1.5, 11.5, 4.5, 1.5]
    # half the examples: half the step; one micro-batch of two: also half the sleep
    assert late.seconds(0, 100.0, 0.5) == 2.5 and late.seconds(0, 100.0, 0.5, 2) == 2.25


def test_jitter_differs_between_machines_and_repeats_with_the_seed(tmp_path):
    cluster = described(tmp_path, "[[workers]]\ncount = 2\nstep_seconds = 1\njitter = 0.3\n")

    def draws(seed):
        return [machine.seconds(0, 0.0) for machine in cluster.machines(seed)]
    assert draws(0) == draws(0) != draws(1)
    assert draws(0)[0] != draws(0)[1]


def test_the_fixed_part_of_a_step_does_not_shrink_with_the_batch(tmp_path):
    cluster = described(tmp_path, """
        batch_size = 100
        [[workers]]
        step_seconds = "10ms+1ms"
        [[workers]]
        step_seconds = "110ms"
        """)
    for batch, fixed, proportional in ((100, 0.110, 0.110), (50, 0.060, 0.055), (10, 0.020, 0.011)):
        spec = cluster.trains(100).trains(batch)
        assert [group.mini_batch for group in spec.groups] == pytest.approx([fixed, proportional])
        machines = spec.machines(seed=0)
        assert [one.seconds(0, 0.0) for one in machines] == pytest.approx([fixed, proportional])
        half = [one.seconds(0, 0.0, share=0.5) for one in machines]  # of a directed batch
        assert half == pytest.approx([0.01 + batch * 0.0005, proportional / 2])


def test_each_micro_batch_takes_the_fixed_part(tmp_path):
    [machine] = described(tmp_path, "[[workers]]\nstep_seconds = '10ms+1ms'\n").trains(
        100).machines(seed=0)
    assert 4 * machine.seconds(0, 0.0, share=0.25, parts=4) == pytest.approx(4 * 0.01 + 0.1)


def test_jitter_and_changes_count_for_the_fixed_part_as_well(tmp_path):
    [machine] = described(tmp_path, """
        [[workers]]
        step_seconds = "10ms+1ms"
        changes = [{ at = 5, factor = 3 }]
        """).trains(10).machines(seed=0)
    assert [machine.seconds(0, t) for t in (0, 5)] == pytest.approx([0.02, 0.06])


def test_a_speed_is_of_the_step_times_of_another_machine(tmp_path):
    cluster = described(tmp_path, """
        [[workers]]
        speed = 2
        [[workers]]
        step_seconds = "1s"
        """)
    assert cluster.relative
    with pytest.raises(ValueError, match="a speed is relative to step times"):
        cluster.machines(seed=0)
    timed = cluster.timed(StepLaw(0.1, 0.01)).trains(30)
    assert not timed.relative
    assert [group.mini_batch for group in timed.groups] == pytest.approx([0.2, 1.0])
    assert worth.fastest(timed, 1).trains(10).groups[0].mini_batch == pytest.approx(0.1)


def test_machines_of_a_group_begin_a_trace_at_different_places(tmp_path):
    (tmp_path / "steps.txt").write_text("0.1\n200ms\n\n0.3\n0.4\n")
    first, second = described(
        tmp_path, '[[workers]]\ncount = 2\ntrace = "steps.txt"\n').machines(seed=0)
    assert [first.seconds(i, 0.0) for i in range(5)] == [0.1, 0.2, 0.3, 0.4, 0.1]
    assert [second.seconds(i, 0.0) for i in range(3)] == [0.3, 0.4, 0.1]


def test_a_group_may_come_one_after_another(tmp_path):
    cluster = described(tmp_path, """
        [[workers]]
        count = 4
        step_seconds = 1
        join = 5
        leave = 100
        spread = "2s"
        [[workers]]
        step_seconds = 1
        """)
    assert [machine.incarnations[0].start for machine in cluster.machines(seed=0)] == [
        5.0, 5.5, 6.0, 6.5, 0.0]


def test_equal_workers_that_arrive_in_turn_do_not_queue_at_the_server(tmp_path):
    def waited(spread):
        spec = described(tmp_path, f"""
            [server]
            bandwidth = "1MB"
            [[workers]]
            count = 4
            step_seconds = 1
            spread = {spread}
            """)
        cluster = Cluster(create("asp"), spec.machines(seed=0), server=spec.server,
                          model_bytes=1e5)
        cluster.run(until=50.0)
        return {round(report.push_seconds / report.pushes, 6) for report in cluster.reports}
    assert waited("0") == {0.4}  # four at once, each at a quarter of the bandwidth
    assert waited("1") == {0.1}


def test_a_spec_gives_its_pace(tmp_path):
    (tmp_path / "steps.txt").write_text("0.1\n0.3\n")
    cluster = described(tmp_path, """
        [server]
        ingress = "2MB"
        apply_seconds = "0.1s"
        [[workers]]
        count = 2
        trace = "steps.txt"
        latency = "1s"
        [[workers]]
        step_seconds = "0.5s"
        sleep_seconds = "1.5s"
        bandwidth = "4MB"
        """)
    assert cluster.pace == pytest.approx(2 / 0.2 + 1 / 2)
    assert cluster.cycle(0) == pytest.approx(0.2 + 2 + 0.1)
    assert cluster.cycle(4e6) == pytest.approx(2 + 0.1 + 2 + 1)
    assert described(tmp_path, "[[workers]]\nstep_seconds = 0\n").pace == INF


def test_the_published_setting_slows_odd_workers():
    machines = published(3, "H2", Group(
        step_seconds=0.02, latency=1e-3, up=125e6, down=125e6)).machines(seed=0)
    assert [machine.seconds(0, 0.0) for machine in machines] == [0.02, 1.02, 0.02]
    assert {(m.latency, m.up, m.down) for m in machines} == {(1e-3, 125e6, 125e6)}


LINE = """
[[workers]]
step_seconds = 1
[server]
bandwidth = "4MB"
egress = "8MB"
apply_seconds = "0.1s"
"""


@pytest.mark.parametrize("shards", [1, 3])
def test_shards_have_links_like_the_servers(tmp_path, shards):
    plain = described(tmp_path, LINE)
    cluster = described(tmp_path, f"{LINE}shards = {shards}\n")
    assert cluster.server == ServerSpec(4e6, 8e6, 0.1, 6.0, shards)
    assert plain.sharded(3) == described(tmp_path, f"{LINE}shards = 3\n")
    assert cluster.sharded(1) == plain


def test_shards_divide_the_servers_part_of_a_cycle(tmp_path):
    step = 1 + 0.1 / 2  # two shards, at the same time
    assert described(tmp_path, f"{LINE}shards = 2\n").cycle(16e6) == pytest.approx(step + 2 + 1)


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_the_clusters_in_scripts_can_be_read(path):
    sizes = {"h1": 2, "h2": 2, "h3": 2, "mild": 4, "three": 3, "pair": 2, "four-sites": 32,
             "three-sites": 12}
    assert read_cluster(path).size == sizes.get(path.stem, 8)


SITES = """
[server]
bandwidth = "100MB"
[[sites]]
server = { bandwidth = "40MB", apply_seconds = "1ms" }
[[sites.workers]]
count = 2
step_seconds = 1
bandwidth = "20MB"
latency = "1ms"
[[sites]]
count = 2
up = "2MB"
down = "4MB"
latency = "50ms"
[[sites.workers]]
step_seconds = 3
[[sites.workers]]
step_seconds = 2
latency = "2ms"
"""


def test_sites_have_one_line_that_their_workers_share(tmp_path):
    cluster = described(tmp_path, SITES)
    assert (cluster.size, [cluster.workers_at(site) for site in range(3)]) == (6, [2, 2, 2])
    star = cluster.machines(seed=0)
    assert [machine.line for machine in star] == [
        Line(0), Line(0), *(Line(site, 2e6, 4e6) for site in (1, 1, 2, 2))]
    assert [machine.latency for machine in star] == pytest.approx(
        [0.001, 0.001, 0.05, 0.052, 0.05, 0.052])
    within = cluster.machines(seed=0, within=True)
    assert [machine.latency for machine in within] == [0.001, 0.001, 0.0, 0.002, 0.0, 0.002]
    assert {machine.line for machine in within} == {None}
    assert [site.server for site in cluster.sites] == [
        ServerSpec(40e6, 40e6, 1e-3, 6.0), *2 * [ServerSpec(detect_seconds=6.0)]]
    assert cluster.sites[1].machine(1).line == Line(1, 2e6, 4e6)


def test_a_cycle_passes_the_link_and_a_round_is_that_of_all_its_users(tmp_path):
    cluster = described(tmp_path, SITES)
    assert cluster.cycle(4e6) == pytest.approx(3 + 2 * 0.05 + 2 + 1)
    assert cluster.round(4e6) == pytest.approx(2 * (2 + 1))
    assert cluster.within(1).cycle(4e6) == pytest.approx(3)
    assert described(tmp_path, LINE).round(4e6) == pytest.approx(1 + 0.5)


WORKER = "[[workers]]\nstep_seconds = 1\n"
SITE = "[[sites]]\nlatency = 1\n"
OF_SITE = "[[sites.workers]]\nstep_seconds = 1\n"


@pytest.mark.parametrize("text, words", [
    ("", r"mine.toml: no \[\[workers\]\]"),
    ("workers = 3", r"mine.toml: workers: is not a list of tables; write \[\[workers\]\]"),
    ("[[workers]]\ncount = 2", "mine.toml: workers: group 1: give one of step_seconds, trace and "),
    (WORKER + "speed = 2", "group 1: give one of step_seconds, trace and speed: how long a step"),
    ("[[workers]]\nspeed = 0", "group 1: speed: must be above 0"),
    ("[[workers]]\nstep_seconds = '8ms+1x'", "step_seconds: .* is not a time; give a number of us"),
    (WORKER + "step = 2", "workers: group 1: unknown key 'step'; known: count, step_seconds, "),
    (WORKER + "count = 0", "group 1: count: 0 is not a whole number of 1 or more"),
    (WORKER + "bandwidth = 100", "group 1: bandwidth: 100 is not a bandwidth; give a number of"),
    (WORKER + "jitter = -1", "group 1: jitter: -1 is not a number of 0 or more"),
    (WORKER + "changes = [{ at = 1 }]", "group 1: changes: .* needs both at and factor"),
    (WORKER + "changes = [{ at = 1, factor = 0 }]", "changes: factor: must be above 0"),
    (WORKER + "stalls = 3", "group 1: stalls: 3 is not a list"),
    (WORKER + "stalls = [{ from = 9, to = 5 }]", "group 1: stalls must follow one another"),
    (WORKER + "join = 9\nleave = 5", "group 1: leaves at 5 s, before it joins at 9 s"),
    (WORKER + "join = 9\nspread = 5\nleave = 10", "leaves at 10 s, before it joins at 14 s"),
    (WORKER + "lose = 9\nleave = 5", "give leave or lose, not both"),
    (WORKER + 'trace = "t.txt"', "trace: file .*t.txt does not exist"),
    (WORKER + WORKER + "latency = '1 s.'", "workers: group 2: latency: '1 s.' is not a time"),
    (WORKER + "[server]\nbandwith = '1Gbit'", "server: unknown key 'bandwith'; known: bandwidth, "),
    (WORKER + "[server]\napply_seconds = 'x'", "server: apply_seconds: 'x' is not a time"),
    (WORKER + "[server]\nshards = 0", "server: shards: 0 is not a whole number of 1 or more"),
    (WORKER + "[server]\nshards = [{}, {}]", "server: shards: shards have no links of their own: "),
    ("model_size = 3\n" + WORKER, "mine.toml: unknown key 'model_size'; known: model_bytes, "),
    ("[[workers]\n", "mine.toml: .*line 1"),
    (SITE, r"mine.toml: sites: site 1: no \[\[sites.workers\]\]: a site needs at least one group"),
    (SITE + OF_SITE + SITE + OF_SITE + "count = 0", "sites: site 2: workers: group 1: count: 0 is"),
    (WORKER + SITE + OF_SITE, r"give \[\[workers\]\] or \[\[sites\]\], not both; workers beside"),
    ("[sites]\nlatency = 1", r"sites: is not a list of tables; write \[\[sites\]\]"),
    (SITE + "speed = 3\n" + OF_SITE, "site 1: unknown key 'speed'; known: count, latency, bandwid"),
    (SITE + "up = '0B'\n" + OF_SITE, "site 1: up: a bandwidth must be above 0, not '0B'"),
    (SITE + "server = { shards = 2 }\n" + OF_SITE, "site 1: server: shards: the server of a site "),
])
def test_an_error_names_file_and_key(tmp_path, text, words):
    with pytest.raises(ValueError, match=words) as error:
        described(tmp_path, text)
    assert "\n" not in str(error.value)


def test_a_missing_file_and_a_bad_trace_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="cluster file .*nowhere.toml does not exist"):
        read_cluster(tmp_path / "nowhere.toml")
    (tmp_path / "steps.txt").write_text("0.1\nfast\n")
    with pytest.raises(ValueError, match="steps.txt, line 2: 'fast' is not a time"):
        described(tmp_path, '[[workers]]\ntrace = "steps.txt"\n')


def test_a_table_in_place_of_a_list_of_tables_is_refused_with_the_right_form(tmp_path):
    (tmp_path / "my.toml").write_text("[workers]\nspeed = 1\n[[workers]]\nspeed = 2\n")
    with pytest.raises(ValueError, match=r"my.toml: .*; write \[\[workers\]\] before each group"):
        read_cluster(tmp_path / "my.toml")
