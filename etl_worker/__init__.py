"""Turns a worker's rows of metadata into shards of tensors, once."""

KINDS = ("etl",)
"""Task kinds this package handles."""

HANDLER = "etl_worker.handler"
"""Module the child imports; this one stays light for the agent."""

OTHERS = {"fitting": "etl_worker.fitting"}
"""Another kind of task, and its module."""
