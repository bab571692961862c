"""The server's workers: who may join, what they ask, and what they are told."""
