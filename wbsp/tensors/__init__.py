"""Flat vectors of floats: what is in them, passes over them, and how they are sent."""
