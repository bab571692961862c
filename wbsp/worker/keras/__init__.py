"""Training with `fit`: the callback, and the parts that use Keras."""
