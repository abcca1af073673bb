"""Agreement of a task's ranks on a common action at a batch boundary.

`Context` calls it at each batch. Rank 0 decides. Ranks on one worker agree through a `RankPage` in shared memory,
without communication; ranks of a gang vote by one collective operation per batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from cerebro.worker.child.rank_page import PAGE, Action, RankPage
from cerebro.worker.protocol.messages import Ranks


class RankAgreement:
    """This process's view of its rank group. Only for the child's main thread, except `note_operations`.

    Attributes:
        ranks: rank group of the task, or `None`.
        vote: for a gang: collective operation that returns the maximum of all ranks' numbers.
    """

    def __init__(self) -> None:
        self.ranks: Ranks | None = None
        self.vote: Callable[[int], int] | None = None
        self._page: RankPage | None = None
        self._batch = self._announced_batch = 0
        self._latest_vote: tuple[int, Action] | None = None
        """Batch of the latest vote in a gang, and its result."""

    @property
    def is_leader(self) -> bool:
        """True for rank 0, and for a task without ranks."""
        return self.ranks is None or self.ranks.rank == 0

    def begin(self, ranks: Ranks | None) -> None:
        """Start a new task."""
        previous, self.ranks = self.ranks, ranks
        self._batch = self._announced_batch = 0
        self._latest_vote = None
        if self._page is not None and previous != ranks:
            self._page.close()
            self._page = None
        if ranks is not None and self._page is None:
            self._page = RankPage(ranks.folder / PAGE, ranks.size)

    def reach_batch(self) -> None:
        """Record that this rank has reached its next batch boundary."""
        self._batch += 1
        if self._page is not None and self.ranks is not None:
            self._page.reach(self.ranks.rank, self._batch)

    def agree(self, requested: Action, *, is_preempted: bool) -> Action:
        """Agree on an action at this batch boundary. Each rank calls it; repeated calls are safe.

        Args:
            requested: rank 0's choice, which alone decides. Announced for a later batch unless an earlier
                one is still pending.
            is_preempted: True if the agent has preempted rank 0.
        """
        if self.ranks is not None and self.ranks.address:
            return self._agree_by_vote(requested, is_preempted=is_preempted)
        assert self._page is not None
        if requested and self._announced_batch < self._batch:
            self._announced_batch = self._page.announce(requested)
        return self._page.announced(self._batch)

    def note_operations(self, number: int) -> None:
        """Record the number of collective operations a rank has begun. Thread-safe."""
        page, ranks = self._page, self.ranks
        if page is not None and ranks is not None:
            with suppress(ValueError):  # the page was closed in the meantime
                page.note(ranks.rank, number)

    def _agree_by_vote(self, requested: Action, *, is_preempted: bool) -> Action:
        """Agree as `agree` does, for ranks without shared memory: one collective operation per batch."""
        if self._latest_vote is None or self._latest_vote[0] != self._batch:
            assert self.vote is not None
            end = Action.END if is_preempted else Action(0)
            vote = requested | end if self.is_leader else Action(0)
            self._latest_vote = self._batch, Action(self.vote(int(vote)))
        return self._latest_vote[1]
