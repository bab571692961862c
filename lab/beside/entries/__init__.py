"""A file an entry: the loop that its user writes."""
