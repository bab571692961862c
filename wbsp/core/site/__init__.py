"""A site as a worker of the server above, without sockets: for real sites and virtual ones."""
