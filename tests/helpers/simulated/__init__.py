"""Run whole trainings in one thread: real servers, standbys, shards and workers on simulated hosts.
"""
