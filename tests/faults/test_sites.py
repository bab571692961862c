"""Sites: servers that are workers of another server, and every example counts once at both levels.
"""

import pytest
from jobs import Jobs
from sites import Sites


@pytest.mark.timeout(200)
@pytest.mark.parametrize("above, inside", [("asp", "asp"), ("bsp", "bsp")])
def test_what_sites_learn_is_in_the_model_once(tmp_path, above, inside):
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, above, inside).start(steps=12, seconds=0.01)
        sites.end_well()
        sites.conserved()
