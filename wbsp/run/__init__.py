"""A run on this machine by one command: `wbsp run --workers=2 train.py` starts the server and the
workers, restarts those that die, and leaves no process."""
