"""A server and its standby: copies, signs of life, and which of them serves."""
