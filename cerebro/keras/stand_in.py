"""What a module of torch says that stands for a model of another framework."""

from __future__ import annotations

from typing import Any

from torch import nn


class StandIn(nn.Module):
    """Has no parameters of its own that torch could train; all that is asked of it is the state.

    Attributes:
        only_single: why it is trained on one device only.
        threads: that it is computed with in this process, for good; `None`: any number can be set.
    """

    only_single: str = ""
    threads: int | None = None

    @property
    def model(self) -> Any:
        """What user code made, and is given."""
        raise NotImplementedError
