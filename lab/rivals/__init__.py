"""What wbsp's models are compared with in virtual time: rivals, each by its published rule.

A rival trains the task of `wbsp simulate` on the same machines. It is no model of wbsp's, because
it has no server, or sends what no model of wbsp's sends. One file is one rule, with its source:

    lone.py           one machine; also with an outer step
    ddp.py            the ring of DistributedDataParallel, in equal or uneven shares
    hivemind.py       a target batch, which all gather at their own pace
    diloco.py         local steps, then a ring and an outer step
    delayed.py        delayed Nesterov and dynamic local updates, at a server
    decoupled.py      Decoupled DiLoCo: fragments, directions and lengths apart, a quorum, grace

What they share:

    ground.py         what is trained on which machines, until when, and its looks
    chain.py          trainings in which all machines hold one model: their rule is a law of time
    ring.py           how long a ring takes
    learners.py       machines that train local steps of their own
    entries.py        rivals by name, with options

What they are compared in:

    cells.py          cells and entries, of lab/reports/lm.toml
    trainings.py      one run of an entry in a cell, and its file
"""
