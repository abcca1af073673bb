"""Make the next items of a sequence in background threads while the present one is used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Item(Generic[T]):
    """One that is being made: its value, or what was raised."""

    def __init__(self) -> None:
        self._done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def make(self, job: Callable[[], T]) -> None:
        try:
            self._done.put((job(), None))
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, who raises it
            self._done.put((None, error))

    def value(self) -> T:
        found, error = self._done.get()
        if error is not None:
            raise error
        return found  # type: ignore[return-value]  # a T where there is no error


def made_ahead(
    jobs: Iterator[Callable[[], T]], *, threads: int = 1, depth: int = 1
) -> Generator[T, None, None]:
    """Yield what the jobs return, in their order, so many ahead.

    The threads end with this iterator: when it is exhausted, closed or collected. What `jobs` or a job raises is raised
    here, after the items before it.

    Args:
        jobs: asked by one thread at a time; what they return may be called by several at once.
        depth: items that are made, or being made, beside the one that is used.
    """
    order: SimpleQueue[_Item[T] | None] = SimpleQueue()
    wanted, asking, stopped = threading.Semaphore(depth), threading.Lock(), threading.Event()

    def work() -> None:
        while True:
            wanted.acquire()
            if stopped.is_set():
                return
            item = _Item[T]()
            with asking:
                if stopped.is_set():
                    return
                try:
                    job = next(jobs)
                except StopIteration:
                    stopped.set()
                    order.put(None)
                    return
                except BaseException as error:  # noqa: BLE001 - handed to the consumer, who raises it
                    stopped.set()
                    order.put(item)
                    item.make(partial(_raise, error))
                    return
                order.put(item)
            item.make(job)
            del item, job  # what was made is the consumer's alone

    made = [threading.Thread(target=work, name="cerebro-prefetch", daemon=True) for _ in range(threads)]
    for thread in made:
        thread.start()
    try:
        while (next_one := order.get()) is not None:
            value = next_one.value()
            wanted.release()
            yield value
            del value
    finally:
        stopped.set()
        for _ in made:
            wanted.release()
        for thread in made:
            thread.join()


def prefetched(source: Iterator[T]) -> Generator[T, None, None]:
    """Yield what ``source`` yields, one item ahead: `made_ahead` by one thread."""
    return made_ahead(partial(_same, item) for item in source)


def _same(item: T) -> T:
    return item


def _raise(error: BaseException) -> Any:
    raise error
