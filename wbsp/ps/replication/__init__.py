"""A server and its standby: snapshots, heartbeats, and the election of the one that serves."""
