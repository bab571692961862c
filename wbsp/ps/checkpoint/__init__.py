"""Checkpoints of a run, and resuming from them."""
