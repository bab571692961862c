"""A model in several processes, each with a range of the vector."""
