"""Workloads of the workers of a virtual cluster."""
