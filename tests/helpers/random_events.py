"""Play worlds of the work ledgers event by event until all work is done."""


def play(world, ledger, events, faulty):
    """Let `world` step until `ledger()` is over, for at most `events` events, with checks in
    between.

    Args:
        faulty: number of events in which faults may occur; after them the run must end.
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
