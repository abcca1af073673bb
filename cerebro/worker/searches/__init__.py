"""Answer a search's requests: actions of a user's own procedure, and suggestions of a sampler.

The agent starts `handler` in a child for `search` tasks, if it is among its handlers: ``--handlers etl_worker
cerebro.worker.searches``. The controller creates the tasks, and reads the answers from the log. No model is trained
here.
"""

KINDS = ("search",)
"""Task kinds of `HANDLER`."""

HANDLER = "cerebro.worker.searches.handler"
"""Module that the child process imports; this package stays cheap to import for the agent."""
