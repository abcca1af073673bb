"""Finds out what there is to choose from before models are trained: which models are alike, which ways each could be
trained by, and how long a batch takes by each way.
"""

KINDS = ("inspect", "trial")
"""Task kinds this package handles."""

HANDLER = "trial_runner.handler"
"""Module the child imports; this one stays light for the agent."""
