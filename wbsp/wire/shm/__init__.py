"""Memory that a server and the workers of its machine share."""
