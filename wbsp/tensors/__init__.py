"""Flat vectors of floats: their contents, passes over them, and how they are sent."""
