"""Entries of a worker's inbox."""

from __future__ import annotations

from pydantic import Field

from cerebro.contract.base import Devices, LateContract
from cerebro.contract.tasks.bodies import TaskBody


class InboxItem(LateContract):
    """One entry of a worker's inbox.

    It is a task to run, or it cancels an attempt (`cancel`), preempts it (`preempt`) or requests its stacks
    (`stacks`), or requests a machine check (`check`).
    """

    seq: int
    experiment: str
    task: str
    attempt: int
    cancel: bool = False
    preempt: str = ""
    """Reason for preempting the attempt at its next batch. Without a reason it isn't preempted."""
    stacks: str = Field("", exclude_if=lambda question: not question)
    """Number of a question about the stacks of the attempt's process."""
    check: str = Field("", exclude_if=lambda reason: not reason)
    """Why the worker must check its machine. The item names no task then."""
    devices: Devices = (0,)
    """Devices of the attempt. Meaningless in cancellations and requests."""
    member: int = Field(0, ge=0, exclude_if=lambda member: member == 0)
    """Number of this worker in the gang. 0: the leader, or no gang."""
    body: TaskBody | None = None
