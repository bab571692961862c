"""Quantities as people write them."""

import math

import pytest

from wbsp import units


@pytest.mark.parametrize("text, value", [
    ("1ms", 1e-3), ("0.5s", 0.5), ("2min", 120.0), ("250 us", 250e-6), ("3", 3.0), (0.25, 0.25),
    ("1e-3s", 1e-3), ("0s", 0.0), (".5h", 1800.0)])
def test_a_time_is_read_in_seconds(text, value):
    assert units.seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text, value", [
    ("1Gbit", 125e6), ("100Mbit", 12.5e6), ("20MB", 20e6), ("20MB/s", 20e6),
    ("1.5GiB", 1.5 * 2**30), ("none", math.inf)])
def test_a_bandwidth_is_read_in_bytes_per_second(text, value):
    assert units.bandwidth(text) == pytest.approx(value)


@pytest.mark.parametrize("text, value", [("593192", 593192), ("4MB", 4e6), ("1KiB", 1024)])
def test_a_size_is_read_in_bytes(text, value):
    assert units.size(text) == value


@pytest.mark.parametrize("text, value", [
    ("1562:0.1,2734:0.01", {1562: 0.1, 2734: 0.01}), ("7:.5", {7: 0.5}), ("7:1e-3", {7: 0.001})])
def test_decays_are_read_by_their_steps(text, value):
    assert units.decays(text) == value


@pytest.mark.parametrize("read, value, words", [
    (units.seconds, "1 second", "'1 second' is not a time; give a number of us, ms, s, min, h"),
    (units.seconds, "-1s", "'-1s' is not a time"),
    (units.seconds, "nan", "'nan' is not a time"),
    (units.seconds, True, "True is not a time"),
    (units.bandwidth, "1Gb", "'1Gb' is not a bandwidth.*bit, kbit, Mbit, Gbit"),
    (units.bandwidth, "100", "'100' is not a bandwidth"),  # of what?
    (units.bandwidth, "0Mbit", "must be above 0"),
    (units.size, "1Mbit", "'1Mbit' is not a size"),
    *((units.decays, value, f"'{value}' is not a list of step:factor") for value in (
        "", "0.1", "0:0.1", "9:0.1,3:0.01", "9:0.1,9:0.01", "9:0.1,", "9:nan", "9:-1", "1.5:0.1")),
])
def test_any_other_value_is_refused_in_one_line(read, value, words):
    with pytest.raises(ValueError, match=words) as error:
        read(value)
    assert "\n" not in str(error.value)
