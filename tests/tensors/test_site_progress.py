"""A site as a replica: what its versions add is cut once, and stays on top of a version from above.
"""

import numpy as np
from integer_replica import pattern

from wbsp.tensors.site_progress import SiteProgress

W = pattern(5)  # float32 [5]


def test_a_cut_is_the_progress_since_the_last_cut():
    site = SiteProgress(W)
    site.take(3 * W)
    assert (site.cut == 2 * W).all()
    site.take(7 * W)
    assert (site.cut == 4 * W).all() and not site.cut.flags.writeable


def test_a_version_from_above_keeps_the_uncut_progress_on_top():
    site = SiteProgress(W)
    site.take(3 * W)
    x = site.adopt(10 * W, 5 * W)  # 2 W since the cut
    assert (x == 12 * W).all()
    site.take(x)
    assert (site.cut == 2 * W).all()


def test_a_cut_that_is_taken_back_is_progress_again():
    site = SiteProgress(W)
    site.take(3 * W)
    site.take_back()
    assert site.cut is None
    assert (site.adopt(10 * W, 4 * W) == 13 * W).all()


def test_progress_that_the_server_above_cannot_use_is_dropped():
    site = SiteProgress(W)
    assert (site.adopt(10 * W, 4 * W, drop=True) == 10 * W).all()
    site.take(11 * W)
    assert (site.cut == W).all()


def test_a_sum_that_is_not_finite_is_no_version():
    site = SiteProgress(np.float32([3e38]))
    with np.errstate(over="ignore"):
        assert site.adopt(np.float32([3e38]), np.float32([-3e38])) == np.float32([3e38])
