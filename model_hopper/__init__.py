"""Trains, validates, tests and predicts: a model hops in as a checkpoint, meets a partition, hops out as the
next one.
"""

KINDS = ("train", "valid", "test", "predict", "audit")
"""Task kinds this package handles."""

HANDLER = "model_hopper.handler"
"""Module the child imports; this one stays light for the agent."""
