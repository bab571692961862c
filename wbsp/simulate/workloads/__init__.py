"""What the workers of a virtual cluster train."""
