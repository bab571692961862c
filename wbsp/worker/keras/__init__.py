"""Training with `fit`: the callback, and what it needs to know of Keras."""
