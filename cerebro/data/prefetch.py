"""Prepare the next item of an iterator in a background thread while the present one is used."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


def prefetched(source: Iterator[T]) -> Generator[T, None, None]:
    """Yield what ``source`` yields, one item ahead.

    ``source`` runs in a thread that ends with this iterator: when it is exhausted, closed or collected. Its
    exceptions are raised here, after the items before them.
    """
    queue: SimpleQueue[tuple[bool, T | BaseException | None]] = SimpleQueue()
    wanted = threading.Semaphore(1)
    stopped = threading.Event()

    def work() -> None:
        try:
            while True:
                wanted.acquire()
                if stopped.is_set():
                    return
                queue.put((True, next(source)))
        except StopIteration:
            queue.put((False, None))
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, who raises it
            queue.put((False, error))

    thread = threading.Thread(target=work, name="cerebro-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            more, item = queue.get()
            if not more:
                if isinstance(item, BaseException):
                    raise item
                return
            wanted.release()
            yield item  # type: ignore[misc]  # a T whenever there is more
    finally:
        stopped.set()
        wanted.release()
        thread.join()
