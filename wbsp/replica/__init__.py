"""Replicas: a live model as one flat vector, for training and evaluation; one file a back end.

`model.open_replica` detects Keras's back end in this process; no other module needs to.
"""
