"""The laws are worth what they find: faults put into the code on purpose, and the plans that do."""

import pytest
from simulated.command import scratch
from simulated.planted import PLANTED

DEAR = "a take-over has its name before it is whole"  # it waits long in virtual time


def in_turn():
    """A fifth of them for each commit, spread over what they are about; the others at night."""
    return [pytest.param(planted, id=planted.name, marks=[pytest.mark.long] * (
        number % 5 > 0 or planted.name == DEAR)) for number, planted in enumerate(PLANTED)]


@pytest.mark.filterwarnings("ignore:overflow encountered")  # of a version that is not finite
@pytest.mark.parametrize("planted", in_turn())
def test_a_planted_fault_is_found_and_the_same_run_without_it_breaks_no_law(planted):
    with scratch() as folder:
        for seed in range(planted.first, planted.first + planted.seeds):
            try:
                with planted.plant():
                    planted.play(seed, folder)
            except Exception as error:
                law = getattr(error, "law", None)
                # what a fault makes of a message is often seen before its other effects: law 7
                assert law in {7, *planted.laws} or (planted.laws & {5, 8} and law is None), error
                planted.play(seed, folder)
                return
        raise AssertionError(f"not found in {planted.seeds} runs")
