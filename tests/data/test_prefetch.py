"""Prefetching prepares the next items in threads that always end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.data.prefetch import made_ahead, prefetched
from tests.waiting import HANG_S


def test_items_come_in_order() -> None:
    """Prefetching does not change the order."""
    assert list(prefetched(iter(range(5)))) == [0, 1, 2, 3, 4]
    assert list(prefetched(iter([]))) == []


def test_one_item_is_prefetched() -> None:
    """While an item is used, only the next one is made."""
    begun: list[int] = []
    ready = threading.Semaphore(0)

    def source() -> Iterator[int]:
        for item in range(5):
            begun.append(item)
            ready.release()
            yield item

    items = prefetched(source())
    assert next(items) == 0
    assert ready.acquire(timeout=HANG_S)
    assert ready.acquire(timeout=HANG_S)  # the second item started without a request
    assert begun == [0, 1]
    items.close()
    assert begun == [0, 1]


def test_an_error_comes_after_the_items_before_it() -> None:
    """The consumer gets the source's exception in its position."""

    def source() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    items = prefetched(source())
    assert next(items) == 1
    with pytest.raises(ValueError, match="broken"):
        next(items)


@pytest.mark.parametrize("used", [0, 1, 3])
def test_no_thread_outlives_its_consumer(used: int) -> None:
    """Closing before, during and after the items ends the thread."""
    before = threading.active_count()
    items = prefetched(iter(range(3)))
    for _ in range(used):
        next(items)
    items.close()
    assert threading.active_count() == before


def _waits_for(before: list[threading.Event], after: threading.Event, item: int) -> int:
    """Make an item after given others, so threads finish in an arbitrary order."""
    for event in before:
        assert event.wait(HANG_S)
    after.set()
    return item


@given(count=st.integers(0, 12), threads=st.integers(1, 4), extra=st.integers(0, 3), seed=st.integers())
def test_items_come_in_order_for_any_order_of_threads(
    count: int, threads: int, extra: int, seed: int
) -> None:
    """Also if each waits for a later one from another thread."""
    events = [threading.Event() for _ in range(count)]
    rng = Random(seed)

    def jobs() -> Iterator[Callable[[], int]]:
        for item in range(count):
            # The first item of a group with one item per thread may wait for the last one.
            last = min(count - 1, item - item % threads + threads - 1)
            waits = [events[last]] if item % threads == 0 and last != item and rng.random() < 0.5 else []
            yield partial(_waits_for, waits, events[item], item)

    assert list(made_ahead(jobs(), threads=threads, depth=threads + extra)) == list(range(count))
    assert not [each for each in threading.enumerate() if each.name == "cerebro-prefetch"]


@pytest.mark.parametrize(("threads", "depth"), [(1, 1), (2, 3), (4, 4)])
def test_at_most_depth_items_are_prefetched(threads: int, depth: int) -> None:
    """Each item needs memory."""
    begun, ready = list[int](), threading.Semaphore(0)

    def job(item: int) -> int:
        begun.append(item)
        ready.release()
        return item

    items = made_ahead((partial(job, item) for item in range(20)), threads=threads, depth=depth)
    assert next(items) == 0
    for _ in range(1 + depth):
        assert ready.acquire(timeout=HANG_S)
    assert sorted(begun) == list(range(1 + depth))
    items.close()
    assert sorted(begun) == list(range(1 + depth))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_exception_of_a_job_keeps_its_position(threads: int) -> None:
    """After all items before it, and no thread remains."""

    def job(item: int) -> int:
        if item == 4:
            raise ValueError("broken")
        return item

    items = made_ahead((partial(job, item) for item in range(9)), threads=threads, depth=threads + 1)
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="broken"):
        next(items)
    assert not [each for each in threading.enumerate() if each.name == "cerebro-prefetch"]
