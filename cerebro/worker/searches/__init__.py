"""Answer a search's requests: actions of a user's own procedure, and suggestions of a sampler.

Runs as one of an agent's handlers: ``--handlers etl_worker cerebro.worker.searches``.
"""

KINDS = ("search",)
"""Task kinds this package handles."""

HANDLER = "cerebro.worker.searches.handler"
"""Module the child imports; this one stays light for the agent."""
