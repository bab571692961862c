"""The error of a state machine whose rule is broken."""


class RuleBroken(RuntimeError):
    """A rule that a state machine's docstring states is broken: a fault of wbsp.

    It is raised where the rule is kept, because no run may hide it. The message names the rule.
    """
