"""A server or a shard that dies at each point of the protocol, under each synchronization model.

Two workers with whole numbers note every cut and every answer: the final model must be W_0 and the
sum of these, each once, to the last bit, and every worker has made the steps of its plan.
`WBSP_KILLS=1` tries every point with every model, with one process and with two shards, with a
standby and without, every other with updates of few blocks, in half an hour; otherwise some
of them are tried.
"""

import itertools
import os
import random
import signal

import pytest
from integer_replica import SPARSE
from jobs import PLAIN, free_port
from kill_points import OF_SERVER, OF_SHARD
from server_and_standby import OFTEN, ServerAndStandby

from wbsp.sync import MODELS

OPTIONS = {"adsp": "period=0.01", "localsgd": "tau=3"}
OF_VERSIONS = "committed", "replicated", "made"  # of which a busy machine makes few under nbsync
ALL = [(sync, shards, standby, point)
       for sync, shards, standby in itertools.product(MODELS, (1, 2), (False, True))
       for point in (*OF_SERVER, *OF_SHARD)
       if (shards > 1 or point not in OF_SHARD) and (standby or point != "replicated")]
ALL = [(*one, (5, SPARSE)[number % 2]) for number, one in enumerate(ALL)]
SOME = [("pcc", 1, False, "decided", 5), ("asp", 1, False, "accepted", 5),
        ("bsp", 2, False, "committed", SPARSE), ("asp", 1, True, "answered", SPARSE),
        ("wbsp", 2, False, "made", 5)]


@pytest.mark.parametrize(("sync", "shards", "standby", "point", "size"),
                         ALL if "WBSP_KILLS" in os.environ else SOME)
def test_a_death_at_any_point_loses_no_update_and_repeats_none(
        jobs, sync, shards, standby, point, size):
    number = random.Random(f"{sync} {shards} {standby} {point}").randint(
        2, 5 if point in OF_VERSIONS else 12)
    flags = [OFTEN, *PLAIN, *([f"--sync_option={OPTIONS[sync]}"] if sync in OPTIONS else [])]
    ports = [free_port() for _ in range(shards)] if point in OF_SHARD else []
    elsewhere = [jobs.shard(port, dies=(point, number) if port == ports[-1] else None)
                 for port in ports]
    where = ",".join(f"localhost:{port}" for port in ports) or str(shards)
    pair = ServerAndStandby(jobs, sync, shards=where, standby=standby, flags=flags,
                            dies=None if ports else (point, number))
    pair.worker(90, seconds=0.004, size=size, share=size != SPARSE)
    if standby:  # which holds W_0 before there are two workers, and so before anybody pushes
        pair.standby.until("holding version")
    pair.worker(60, seconds=0.01, size=size)
    doomed = elsewhere[-1] if ports else pair.server
    assert doomed.ends() == -signal.SIGKILL
    if ports:
        elsewhere[-1] = jobs.shard(ports[-1])
    elif standby:
        pair.standby.until("taking over")
    else:
        pair.server = pair.start_server("--resume")
    for worker in pair.workers:
        worker.ends_well()
    pair.ends(pair.serving)
