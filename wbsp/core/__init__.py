"""What real clusters and virtual ones both run: decisions and their state, without I/O."""
