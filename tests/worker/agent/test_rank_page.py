"""Ranks coordinate a common stop batch through a shared memory page."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cerebro.worker.child.rank_page import PAGE, Action, RankPage

RANKS, LAST = 3, 400


@contextmanager
def pages(folder: Path, size: int) -> Iterator[list[RankPage]]:
    """Make a page for each rank."""
    RankPage.make(folder / PAGE, size)
    rank_pages = [RankPage(folder / PAGE, size) for _ in range(size)]
    yield rank_pages
    for page in rank_pages:
        page.close()


def test_ranks_stop_only_on_request(tmp_path: Path) -> None:
    """The agent sees each rank's batch."""
    with pages(tmp_path, 2) as (one, other):
        one.reach(0, 5)
        other.reach(1, 4)
        assert other.batches() == [5, 4]
        assert one.announced(5) == other.announced(4) == Action(0)


def test_a_rank_waits_for_the_confirmation_of_a_stop(tmp_path: Path) -> None:
    """A changed announcement stops no rank, and an unconfirmed one raises an error."""
    with pages(tmp_path, 2) as (one, other):
        one.reach(0, 1)
        one._words[0] = 3 << 3 | int(Action.END) << 1
        other.reach(1, 3)
        with pytest.raises(TimeoutError, match="stop at batch 3, and did not confirm it"):
            other.announced(3, limit_s=0.01)
        changing = threading.Timer(0.05, lambda: one.announce(Action.END))
        changing.start()
        assert other.announced(3) == Action(0)
        changing.join()
        assert other.announced(4) == Action.END


@pytest.mark.parametrize("seed", range(4))
def test_all_ranks_stop_at_the_same_batch(tmp_path: Path, seed: int) -> None:
    """The ranks have no other synchronization and run at any speed."""
    chance = random.Random(seed)
    paces = [[chance.choice((0.0, 0.0, 1e-5, 2e-4)) for _ in range(LAST)] for _ in range(RANKS)]
    asked_at = chance.randrange(1, LAST // 4)
    left: dict[int, int] = {}

    def run(page: RankPage, rank: int) -> None:
        for batch in range(1, LAST):
            page.reach(rank, batch)
            if rank == 0 and batch == asked_at:
                page.announce(Action.END)
            if page.announced(batch):
                left[rank] = batch
                return
            time.sleep(paces[rank][batch])

    with pages(tmp_path, RANKS) as rank_pages:
        threads = [threading.Thread(target=run, args=(page, rank)) for rank, page in enumerate(rank_pages)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # A rank that finished before the announcement has no batch to stop at; then the others finish too.
    assert len(set(left.values())) <= 1
    assert len(left) in (0, RANKS)
