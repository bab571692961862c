"""A worker's connections to its server and the shards."""
