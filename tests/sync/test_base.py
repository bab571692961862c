"""The registry and the options: bad input gets one line that names what is known."""

import pytest

from wbsp.sync import MODELS, Commit, Push, WorkerRule, create


@pytest.mark.parametrize("name", MODELS)
def test_the_registry_makes_every_model_by_its_own_name(name):
    assert create(name).name == name


def test_an_unknown_model_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown synchronization model 'bps'.*bsp.*wbsp.*pcc"):
        create("bps")


def test_an_unknown_option_lists_the_known_ones():
    with pytest.raises(ValueError, match="ssp: unknown option 'S'; known: s, refresh"):
        create("ssp", S=3)
    with pytest.raises(ValueError, match="bsp: unknown option 's'; known: none"):
        create("bsp", s=3)


@pytest.mark.parametrize("name, options, message", [
    ("ssp", {"s": "many"}, "s='many' is not of type int"),
    ("ssp", {"s": 2.5}, "s=2.5 is not of type int"),
    ("ssp", {"s": -1}, "s=-1 is below 0"),
    ("asp", {"overlap": "perhaps"}, "overlap='perhaps' is not of type bool"),
    ("ssp", {"refresh": "never"}, "refresh='never' is not one of push, published"),
    ("wbsp", {"trigger": "fastest"}, "trigger='fastest' is not one of all_pushed, slowest"),
])
def test_a_bad_value_is_refused_with_the_reason(name, options, message):
    with pytest.raises(ValueError, match=message) as error:
        create(name, **options)
    assert "\n" not in str(error.value)


def test_text_from_a_flag_becomes_the_options_type():
    assert create("ssp", s="7").s == 7
    assert create("asp", overlap="yes").overlap is True
    assert create("asp", overlap="false").overlap is False


def test_a_rule_that_could_meet_a_busy_sender_is_refused():
    with pytest.raises(ValueError, match="use push='when_idle'"):
        WorkerRule(push="every_step", wait="never", adopt="rebase")
    with pytest.raises(ValueError, match="adopt='return' needs wait='model' or 'ack'"):
        WorkerRule(push="when_idle", wait="never", adopt="return")


def test_the_lag_of_a_push_is_counted_by_the_model():
    model = create("bsp")
    push = Push(0, 0, 0, 1, 8, 1.0)
    assert model.lag(push) == 0
    assert [model.next_version(), model.next_version()] == [Commit(), Commit()]
    assert model.lag(push) == 2 and model.lag(push._replace(base_version=2)) == 0
    assert model.lag(push._replace(base_version=7)) == 0, "a resumed run begins above 0"
    assert model.lag(push._replace(base_version=5)) == 2
