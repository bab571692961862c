"""Worlds of the work ledgers, played event by event until all is done."""


def play(world, ledger, events, faulty):
    """Let `world` step until `ledger()` is over, and check it now and then; at most `events` times.

    faulty: events in which faults may come; then the run must end
    """
    for event in range(events):
        world.faults = event < faulty
        world.step()
        if event % 7 == 0:
            world.check()
        if ledger().over and not world.awaited:
            break
    else:
        raise AssertionError("the run does not end")
    world.check()
