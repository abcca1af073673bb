"""Answers what a search asks of workers: what a user's own procedure orders, and which values a sampler draws.

Started as a handler of an agent, beside others: ``--handlers etl_worker cerebro.worker.searches``.
"""

KINDS = ("search",)
"""Task kinds this package handles."""

HANDLER = "cerebro.worker.searches.handler"
"""Module the child imports; this one stays light for the agent."""
