"""Replicas: a live model as one flat vector, for training and evaluation; one file a back end."""
