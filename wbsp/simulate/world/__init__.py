"""Virtual time, links and machines, independent of synchronization models."""
