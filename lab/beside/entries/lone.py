"""The fastest machine alone: AdamW, with an outer step after each step (`outer=qhm`), or after some
(`outer=nesterov:every=48`, SNOO).

Two cores of one processor slow each other, as two machines do not. So the other machines of the
cell are busy here, too: each trains for itself, and nobody counts that.
"""

from beside.training import Training, stepping

t = Training()
optimizer = t.optimizer()
steps = stepping(t, optimizer)
t.begin()
counts, ended = t.index == 0, t.folder / "end-0.json"
while t.examples < t.total and not ended.exists():
    t.rate(optimizer, t.examples)
    places = range(t.examples, t.examples + t.plan.given.batch)
    loss = t.gradient(t.model, places)
    t.clip()
    steps.step()
    if counts:
        t.made(places, loss)
if counts:
    t.finish()
