"""ASP: nobody waits for anybody."""

from clusters import Witness, many, plans
from hypothesis import given

from wbsp.sync import create


def every_push_is_a_version(witness, effects, push):
    assert witness.committed == (push is not None)
    if push:
        assert effects[0].granted == len(witness.bytes) - 1
        assert witness.merged[-1] == 1


@many
@given(plans())
def test_random_clusters_keep_the_laws_and_nobody_waits_at_all_with_overlap(plan):
    witness = Witness(plan, create("asp", overlap=True), every_push_is_a_version)
    for worker in set(range(len(plan.workers))) - witness.lossy:
        if len(plan.workers[worker]["incarnations"]) == 1:
            assert witness.idle(worker) == set()


@many
@given(plans())
def test_random_clusters_keep_the_laws_and_nobody_waits(plan):
    witness = Witness(plan, create("asp"), every_push_is_a_version)
    for worker in set(range(len(plan.workers))) - witness.lossy:
        if len(plan.workers[worker]["incarnations"]) == 1:
            assert "wait" not in witness.idle(worker)
