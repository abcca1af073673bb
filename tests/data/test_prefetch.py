"""The next item is prepared while the present one is used, and the thread that does it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cerebro.data.prefetch import prefetched


def test_items_come_in_order() -> None:
    """Prefetching changes nothing but when items are made."""
    assert list(prefetched(iter(range(5)))) == [0, 1, 2, 3, 4]
    assert list(prefetched(iter([]))) == []


def test_one_item_is_made_ahead_and_no_more() -> None:
    """While an item is used, the next is made, but not the one after it."""
    begun: list[int] = []
    ready = threading.Semaphore(0)

    def source() -> Iterator[int]:
        for item in range(5):
            begun.append(item)
            ready.release()
            yield item

    items = prefetched(source())
    assert next(items) == 0
    assert ready.acquire(timeout=10)
    assert ready.acquire(timeout=10)  # the second item was begun without being asked for
    assert begun == [0, 1]
    items.close()
    assert begun == [0, 1]


def test_an_error_comes_after_the_items_before_it() -> None:
    """What the source raises is raised to the consumer, in its place."""

    def source() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    items = prefetched(source())
    assert next(items) == 1
    with pytest.raises(ValueError, match="broken"):
        next(items)


@pytest.mark.parametrize("used", [0, 1, 3])
def test_no_thread_outlives_its_consumer(used: int) -> None:
    """Closing before, in the middle of and after the items ends the thread."""
    before = threading.active_count()
    items = prefetched(iter(range(3)))
    for _ in range(used):
        next(items)
    items.close()
    assert threading.active_count() == before
