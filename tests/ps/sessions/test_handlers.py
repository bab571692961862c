"""Each message goes to one method of the server."""

import pytest

from wbsp.ps.sessions.handlers import Handlers
from wbsp.wire.messages import codec as m


def test_two_parts_take_as_long_as_each_in_turn():
    handlers = Handlers({m.Hello: print}, {m.Join: repr})
    handlers.add(Handlers({m.Ask: len}, {m.Fetch: str}))
    assert handlers.anybody == {m.Hello: print, m.Ask: len}
    assert handlers.session == {m.Join: repr, m.Fetch: str}


@pytest.mark.parametrize("other", [Handlers({m.Hello: len}), Handlers(session={m.Join: len})])
def test_no_two_parts_take_the_same_message(other):
    with pytest.raises(AssertionError):
        Handlers({m.Hello: print}, {m.Join: repr}).add(other)
