"""`Task` by the name under which it is documented: see `wbsp.environment`."""

from wbsp.environment import Task

__all__ = ["Task"]
