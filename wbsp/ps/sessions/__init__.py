"""Sessions with workers: admission, requests, and replies."""
