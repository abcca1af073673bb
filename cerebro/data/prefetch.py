"""Compute the next items of an iterator in background threads, in order.

`PartitionLoader` makes batches with it and the controller's sorting reads tables with it. How many threads are worth
using is decided by the caller (`cerebro.data.prefetch_tuning` for batches).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Item(Generic[T]):
    """An item in progress: its value or exception."""

    def __init__(self) -> None:
        self._done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def make(self, job: Callable[[], T]) -> None:
        try:
            self._done.put((job(), None))
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            self._done.put((None, error))

    def value(self) -> T:
        value, error = self._done.get()
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # a T without an error


def made_ahead(
    jobs: Iterator[Callable[[], T]], *, threads: int = 1, depth: int = 1
) -> Generator[T, None, None]:
    """Yield the jobs' results in order, computed in advance by threads.

    The threads start with the first item. When the iterator is exhausted, closed or collected, it lets them finish
    their present jobs and end. An error of `jobs` or of a job is raised in place of the item and ends the iterator.

    Args:
        jobs: iterator of jobs. One thread at a time advances it; several threads may call jobs at once.
        threads: number of threads.
        depth: maximum number of items that are finished or in progress, without the item in use.
    """
    order: SimpleQueue[_Item[T] | None] = SimpleQueue()
    free_items, jobs_lock, stopped = threading.Semaphore(depth), threading.Lock(), threading.Event()

    def work() -> None:
        while True:
            free_items.acquire()
            if stopped.is_set():
                return
            item = _Item[T]()
            with jobs_lock:
                if stopped.is_set():
                    return
                try:
                    job = next(jobs)
                except StopIteration:
                    stopped.set()
                    order.put(None)
                    return
                except BaseException as error:  # noqa: BLE001 - the consumer raises it
                    stopped.set()
                    order.put(item)
                    item.make(partial(_raise, error))
                    return
                order.put(item)
            item.make(job)
            del item, job  # the consumer alone owns the result

    workers = [threading.Thread(target=work, name="cerebro-prefetch", daemon=True) for _ in range(threads)]
    for thread in workers:
        thread.start()
    try:
        while (next_item := order.get()) is not None:
            value = next_item.value()
            free_items.release()
            yield value
            del value
    finally:
        stopped.set()
        for _ in workers:
            free_items.release()
        for thread in workers:
            thread.join()


def prefetched(source: Iterator[T]) -> Generator[T, None, None]:
    """Yield the items of `source`; a thread computes one item in advance."""
    return made_ahead(partial(_same, item) for item in source)


def _same(item: T) -> T:
    return item


def _raise(error: BaseException) -> Any:
    raise error
