"""Runs of virtual clusters, from their description to the table at the end."""
