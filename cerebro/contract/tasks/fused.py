"""Fused groups: sub-epochs of several models that train as one stack in one process."""

from __future__ import annotations

from pydantic import Field

from cerebro.contract.base import Contract


class FusedGroup(Contract):
    """The fused group of an attempt.

    The attempts of a group have the same run, epoch, partition and devices. Each may end alone.

    Attributes:
        id: the same for all attempts of the group, and for no other attempt of the experiment.
        size: number of attempts at assignment, without those that have ended before they started. Each one counts for
            this share of the devices' time.
    """

    id: str
    size: int = Field(ge=1)

    @classmethod
    def led_by(cls, task: str, attempt: int, size: int) -> FusedGroup | None:
        """Return the group whose first task this is; `None` for a task alone."""
        return cls(id=f"{task}#{attempt}", size=size) if size > 1 else None
