"""A page of memory that the ranks of an attempt and their agent share: how far each rank is, and at which batch all of
them stop together.

A rank that leaves its loop alone lets the others wait for it for ever. To ask at every batch whether all go on would
cost a collective operation each. So rank 0, which alone hears the agent, announces a batch that no rank has reached
yet. Each rank writes where it is before it looks for an announcement, and rank 0 writes the announcement before it
looks where the ranks are. So either rank 0 sees that a rank is past that batch, and announces a later one, or the rank
sees the announcement. One that arrives in between waits until rank 0 has confirmed it, some microseconds.

A batch is counted at its boundary: the moment before it is handed out, in all passes over the data.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable
from enum import IntFlag
from pathlib import Path

PAGE = "page"
"""Its file, in the folder where the ranks meet."""

_WORD = 8
_HEAD = 1
"""Words before those of the ranks: the announcement. Then come the batches of all ranks, then their operations."""
_ACTIONS_BITS = 2
_PAUSE_S = 20e-6


class Action(IntFlag):
    """What all ranks do together at a batch."""

    SAVE = 1  # take a savepoint
    END = 2  # leave the sub-epoch


class RankPage:
    """Seen from the agent, or from one rank.

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
        """Make the file: no rank has begun."""
        path.write_bytes(bytes(_WORD * (_HEAD + 2 * size)))

    def close(self) -> None:
        """Give the memory back."""
        self._words.release()
        self._map.close()

    def clear(self) -> None:
        """Another sub-epoch begins. To be called before any rank is told."""
        for number in range(_HEAD + 2 * self.size):
            self._words[number] = 0

    def batches(self) -> list[int]:
        """By rank: how many batches it has begun."""
        return [self._words[_HEAD + rank] for rank in range(self.size)]

    def operations(self) -> list[int]:
        """By rank: how many operations of all ranks together it has begun, as it last noted; 0: it noted none."""
        return [self._words[_HEAD + self.size + rank] for rank in range(self.size)]

    def note(self, rank: int, operations: int) -> None:
        """This rank has begun so many. Safe in any thread of it."""
        self._words[_HEAD + self.size + rank] = operations

    def reach(self, rank: int, batch: int) -> None:
        """This rank has come to the boundary of its `batch`-th batch, from 1."""
        self._words[_HEAD + rank] = batch
        with self._fence:  # what is written is seen by others before the announcement is read
            pass

    def announced(
        self, batch: int, *, limit_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> Action:
        """What all ranks do at the boundary where this one is.

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
                return Action(0)  # somebody was past it
        return Action(word >> 1 & (1 << _ACTIONS_BITS) - 1)

    def announce(self, actions: Action) -> int:
        """Of rank 0: choose a batch that nobody has reached.

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
