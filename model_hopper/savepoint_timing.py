"""Decides at each batch whether a sub-epoch takes a savepoint.

`model_hopper.handler` calls `consider` after each batch. A savepoint is due after some time, which follows from its
measured cost (`savepoints.Timer`), or when the sub-epoch is preempted and the grace period suffices. All ranks take it
at the same batch. `Savepoints` writes it.
"""

from __future__ import annotations

import time

from cerebro.data.loader import PartitionLoader
from cerebro.worker.child.context import Context
from cerebro.worker.child.rank_page import Action
from cerebro.worker.training.checkpoints.savepoints import Savepoints, Timer

_SLOW_VOLUME = 100e6
"""Assumed bytes per second of the volume before the first savepoint is measured."""


class SavepointTiming:
    """Decides when to take savepoints in one process; learns their cost over the sub-epochs that it runs."""

    def __init__(self, context: Context) -> None:
        self._context, self._timer = context, Timer(context.savepoint_s)

    def begin(self, now: float) -> None:
        """Start a sub-epoch.

        Args:
            now: monotonic seconds.
        """
        self._timer.begin(now)

    def consider(self, savepoints: Savepoints, batch: int, rows: int, loader: PartitionLoader) -> None:
        """Take a savepoint if it is due, or if the sub-epoch is preempted and has time for one.

        With several ranks, rank 0 decides and all take it at the same batch.
        """
        is_wanted = self._context.agreement.is_leader and self.is_wanted(savepoints, batch, loader)
        if self._context.ranks is not None:
            wanted = Action.SAVE if self._context.preemption.remaining_s is None else Action.SAVE | Action.END
            is_wanted = Action.SAVE in self._context.agree(wanted if is_wanted else Action(0))
        if is_wanted:
            self.take(savepoints, batch, rows)

    def take(self, savepoints: Savepoints, batch: int, rows: int) -> None:
        """Take a savepoint, if possible, and measure it."""
        began = time.monotonic()
        is_taken = savepoints.take(batch, rows)
        self._timer.tried(began, time.monotonic(), is_taken=is_taken)

    def fits(self, left_s: float) -> bool:
        """Return True if a savepoint fits into the remaining seconds."""
        return self._timer.fits(left_s)

    def is_wanted(self, savepoints: Savepoints, batch: int, loader: PartitionLoader) -> bool:
        """Return True if a savepoint is due, or if the task is preempted and has time for one."""
        timer, now, left_s = self._timer, time.monotonic(), self._context.preemption.remaining_s
        if left_s is not None:
            return timer.fits(left_s)
        done = batch - loader.first
        pace = {"share": done / len(loader), "batch_s": (now - timer.began) / done}
        is_wanted = timer.is_due(now, **pace)
        if is_wanted and not timer.cost_s:
            timer.cost_s = savepoints.num_bytes() / _SLOW_VOLUME
            is_wanted = timer.is_due(now, **pace)
        return is_wanted
