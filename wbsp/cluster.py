"""`Task` under its documented name: see `wbsp.environment`."""

from wbsp.environment import Task

__all__ = ["Task"]
