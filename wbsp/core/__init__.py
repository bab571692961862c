"""Decisions and their state, without I/O; real clusters and virtual ones both run this code."""
