"""Respond to requests for a task's stacks while its process continues.

A user's request reaches the worker's inbox; the agent's `loop` passes it on, and the text goes to the store. The
reporter has its own thread, because a process may take a second to respond and the inbox must not wait.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from cerebro.contract.rest import api
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.errors import CerebroError
from cerebro.runtime.kvs.client import KvsClient

log = logging.getLogger(__name__)

_MAX_WAITING = 16
"""Maximum queued requests. Further ones get no answer; the requester repeats them."""
_ENDED = "the attempt has ended"


class _Slot(Protocol):
    def stacks(self, item: InboxItem) -> str | None:
        """Return the stacks of the attempt `item`; `None` if this slot does not run it."""


class StackReporter:
    """Reports stacks to the store. One thread calls `run`; any thread may call `request`."""

    def __init__(self, kvs: KvsClient, worker: str) -> None:
        self._kvs, self._worker = kvs, worker
        self._requests: queue.Queue[tuple[InboxItem, tuple[_Slot, ...]] | None] = queue.Queue(_MAX_WAITING)

    def request(self, item: InboxItem, slots: Iterable[_Slot]) -> None:
        """Queue a request for the stacks of an attempt."""
        try:
            self._requests.put_nowait((item, tuple(slots)))
        except queue.Full:
            log.warning("%s: its stacks are not reported, because too many requests wait", item.task)

    def end(self) -> None:
        """Make `run` return after the current answer."""
        with suppress(queue.Full):
            self._requests.put_nowait(None)

    def run(self) -> None:
        """Answer until `end`."""
        while (question := self._requests.get()) is not None:
            item, slots = question
            try:
                found = (text for slot in slots if (text := slot.stacks(item)) is not None)
                report = api.StacksReport(
                    experiment=item.experiment, question=item.stacks, text=next(found, _ENDED)
                )
                self._kvs.report_stacks(self._worker, report)
            except (CerebroError, OSError) as error:
                log.warning("the stacks of %s could not be reported: %s", item.task, error)
