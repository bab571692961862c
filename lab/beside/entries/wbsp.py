"""wbsp: shared data and the user's own batch, as docs/how-to/any-loop.md has it."""

import wbsp
from beside.training import Training

t = Training()
optimizer = t.optimizer()
with wbsp.Worker(t.model, n=t.total, batch_size=t.plan.given.batch, seed=t.plan.seed) as w:
    t.begin()
    for _ in w.epochs():
        for places in w.indices():
            t.rate(optimizer, w.done * t.total)
            loss = t.gradient(t.model, places)
            t.clip()
            optimizer.step()
            w.step(loss)
            t.made(places, loss)
t.finish()
