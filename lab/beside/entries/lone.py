"""The fastest machine alone: AdamW, with an outer step after each step (`outer=qhm`), or after some
(`outer=nesterov:every=48`, SNOO).
"""

from beside.training import Training, stepping

t = Training()
optimizer = t.optimizer()
steps = stepping(t, optimizer)
t.begin()
while t.examples < t.total:
    t.rate(optimizer, t.examples)
    places = range(t.examples, t.examples + t.plan.given.batch)
    loss = t.gradient(t.model, places)
    t.clip()
    steps.step()
    t.made(places, loss)
t.finish()
