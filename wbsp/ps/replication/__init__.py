"""A server and its standby: snapshots, heartbeats, and the election of the one that serves.

A standby holds a copy of what a checkpoint would hold, and a takeover resumes from it, so failover
and `--resume` share one path. `primary.py` is the server's side, `standby.py` the standby's, and
`snapshot.py` what they exchange. The rule in `election.py` prevents that both serve.
"""
