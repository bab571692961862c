"""The virtual cluster: the real engine and the real agents in that world."""
