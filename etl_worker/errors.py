"""Errors of preprocessing that are not the user's input."""

from cerebro.errors import WorkerCrashedError


class CoreDiedError(WorkerCrashedError):
    """A process that preprocessed rows ended by itself; the message names the row it was at."""
