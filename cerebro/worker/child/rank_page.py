"""Shared memory of an attempt's ranks and their agent: each rank's progress and the batch to stop at.

The agent's `ChildGroup` (or `MemberRun`) makes the page and reads progress to find a hung rank; each rank's
`RankAgreement` writes to it. Only processes of one machine share it.

A rank that leaves its loop alone blocks the others forever, and voting at each batch would cost a collective operation.
So rank 0, the only one to hear the agent, announces a batch that no rank has reached. Each rank writes its position
before it reads the announcement; rank 0 writes the announcement before it reads the positions. So either rank 0 sees
that a rank has passed that batch, and announces a later one, or the rank sees the announcement. A rank that arrives in
between waits some microseconds for rank 0's confirmation.

A batch is counted at its boundary: just before it is returned, in all passes over the data.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable
from enum import IntFlag
from pathlib import Path

PAGE = "page"
"""Name of the page's file in the rendezvous folder."""

_WORD = 8
_HEAD = 1
"""Number of words before the ranks' batches and operations: the announcement."""
_ACTIONS_BITS = 2
_PAUSE_S = 20e-6


class Action(IntFlag):
    """Actions that all ranks take at the same batch."""

    SAVE = 1  # take a savepoint
    END = 2  # leave the sub-epoch


class RankPage:
    """A mapping of the page, in the agent or in one rank.

    Args:
        path: file of the page.
        size: number of ranks.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _WORD * (_HEAD + 2 * size))
        self._words = memoryview(self._map).cast("q")
        self._fence = threading.Lock()

    @staticmethod
    def make(path: Path, size: int) -> None:
        """Create the file with no rank started."""
        path.write_bytes(bytes(_WORD * (_HEAD + 2 * size)))

    def close(self) -> None:
        """Unmap the page."""
        self._words.release()
        self._map.close()

    def batches(self) -> list[int]:
        """Return the number of batches each rank has begun."""
        return [self._words[_HEAD + rank] for rank in range(self.size)]

    def operations(self) -> list[int]:
        """Return the number of collective operations each rank has begun, as last noted; 0 if never."""
        return [self._words[_HEAD + self.size + rank] for rank in range(self.size)]

    def note(self, rank: int, operations: int) -> None:
        """Record a rank's number of operations. Thread-safe within the rank."""
        self._words[_HEAD + self.size + rank] = operations

    def reach(self, rank: int, batch: int) -> None:
        """Record that a rank has reached its `batch`-th boundary, from 1."""
        self._words[_HEAD + rank] = batch
        with self._fence:  # makes the write visible before the announcement is read
            pass

    def announced(
        self, batch: int, *, limit_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> Action:
        """Return the actions announced for this batch; no actions if it was not announced.

        Args:
            batch: the batch boundary that the calling rank has reached.
            limit_s: maximum seconds to wait for rank 0's confirmation.

        Raises:
            TimeoutError: rank 0 has announced this batch, and did not confirm it.
        """
        word = self._words[0]
        if word >> (_ACTIONS_BITS + 1) != batch:
            return Action(0)
        deadline = clock() + limit_s
        while not word & 1:
            if clock() > deadline:
                raise TimeoutError(
                    f"rank 0 announced that all ranks stop at batch {batch}, and did not confirm it"
                )
            time.sleep(_PAUSE_S)
            word = self._words[0]
            if word >> (_ACTIONS_BITS + 1) != batch:
                return Action(0)  # a rank had passed it
        return Action(word >> 1 & (1 << _ACTIONS_BITS) - 1)

    def announce(self, actions: Action) -> int:
        """Choose a batch that no rank has reached and announce it; for rank 0.

        Returns:
            That batch.
        """
        while True:
            batch = max(self.batches()) + 1
            word = batch << (_ACTIONS_BITS + 1) | int(actions) << 1
            self._words[0] = word
            with self._fence:  # as above
                pass
            if max(self.batches()) < batch:
                self._words[0] = word | 1
                return batch
