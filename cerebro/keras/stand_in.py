"""Base class of torch modules that represent models of other frameworks.

`KerasModule` is the only subclass. `cerebro.worker.training.frameworks` recognises stand-ins, so that code above it
needs no import of the framework.
"""

from __future__ import annotations

from typing import Any

from torch import nn


class StandIn(nn.Module):
    """A module without torch parameters; only its state is used.

    Attributes:
        only_single: reason why it trains on one device only.
        threads: fixed number of threads in this process, or `None` if it can be set.
    """

    only_single: str = ""
    threads: int | None = None

    @property
    def model(self) -> Any:
        """The model that user code created."""
        raise NotImplementedError
