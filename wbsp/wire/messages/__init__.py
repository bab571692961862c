"""The messages that processes of a run exchange: one class a message."""
