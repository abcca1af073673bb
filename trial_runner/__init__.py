"""Measure parallel plans before a run trains its models.

`inspection.py` builds the models of a run without weights in memory, groups similar models and lists their possible
parallel plans. `trial.py` trains one model for some batches by one plan: it compares the gradient with a single device
and measures time, memory and checkpoints. `handler.py` executes both kinds of tasks in a worker's child process. Which
trials run is decided in `controller/sources/trials`.
"""

KINDS = ("inspect", "trial")
"""Task kinds of `HANDLER`."""

HANDLER = "trial_runner.handler"
"""Module that the child process imports; this package stays cheap to import for the agent."""
