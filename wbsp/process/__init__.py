"""What a process needs of its machine: clock, network, disk, children, signals."""
