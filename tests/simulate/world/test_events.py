"""Order of events in virtual time."""

from wbsp.simulate.world.clock import Clock


def test_ties_happen_in_the_order_they_were_planned_and_late_ones_last():
    clock, heard = Clock(), []
    clock.late(1.0, heard.append, "late")
    clock.at(1.0, heard.append, "first")
    clock.after(1.0, heard.append, "second")
    clock.at(0.5, heard.append, "before")
    clock.at(1.0, clock.after, 0.0, heard.append, "planned in that moment")
    assert clock.run()
    assert heard == ["before", "first", "second", "planned in that moment", "late"]
    assert (clock.now, clock.events) == (1.0, 6)


def test_a_run_stops_at_its_time_and_continues():
    clock, heard = Clock(), []
    clock.at(1.0, heard.append, 1)
    clock.at(2.0, heard.append, 2)
    assert not clock.run(until=1.5)
    assert (clock.now, heard) == (1.5, [1])
    assert clock.run()
    assert heard == [1, 2]
