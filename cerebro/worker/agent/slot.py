"""A device slot: one attempt after another in its own thread, on a set of devices or none.

The agent creates a slot for each set of devices that the inbox names. The slot takes items from its mailbox, reports
their start, runs them through its `Execution` and reports their end. Each slot has its own attempt, lease, mailbox and
child process. Slots with a common device alternate in the inbox's order (`DeviceQueues`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from cerebro.contract.rest import api
from cerebro.contract.tasks.failures import Failure
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import RetryableError, ServerError
from cerebro.runtime import logs
from cerebro.state.tasks.keys import TaskKey
from cerebro.worker.agent.execution import Execution
from cerebro.worker.agent.lease import Lease, Name, attempt_fields, attempts_of, name_of, without
from cerebro.worker.agent.mailbox import Mailbox
from cerebro.worker.agent.shared import Shared
from cerebro.worker.upkeep.checkpoint_removal import outdated_by

log = logging.getLogger(__name__)


_REMEMBERED = 1000
"""Number of revoked attempts that are remembered."""
_SERVER_ERRORS_S, _PAUSE_S = 120.0, 1.0
"""Repeat a report for two minutes if kvs_api fails; the pause between two tries."""


class Slot:
    """One slot. Only its own thread calls `work`; any thread may use `mailbox` and `lease`.

    Args:
        devices: device numbers, ascending; () for tasks without devices.
    """

    def __init__(self, shared: Shared, devices: tuple[int, ...]) -> None:
        self.devices = devices
        self.mailbox, self.lease = Mailbox(shared.queues), Lease(shared.report_soon)
        self.has_ended = False
        """True after `work` has ended."""
        self.execution = Execution(shared, devices, self.lease, self.mailbox)
        self._shared, self._drain, self._reports = shared, shared.drain, shared.reports
        self._lost: deque[Name] = deque(maxlen=_REMEMBERED)
        """Revoked attempts of all slots, newest last."""

    def lose(self, item: InboxItem) -> None:
        """Mark an attempt as revoked. No effect if this slot does not run it. Thread-safe."""
        self._lost.append(name_of(item))
        self.lease.lose(item)
        self.mailbox.wake()

    def stacks(self, item: InboxItem) -> str | None:
        """Return the stacks of the running attempt `item`, or `None` if not here. Thread-safe."""
        if name_of(item) not in map(name_of, self.lease.attempts):
            return None
        return self.execution.stacks()

    def work(self) -> None:
        """Run tasks until the worker drains, and report the last one.

        Raises:
            SupersededError: another process has replaced this worker.
            RetryableError: the store was away for too long.
        """
        try:
            self._work()
        finally:
            self.execution.close()

    def _work(self) -> None:
        ended: InboxItem | None = None
        steps: list[api.Report] = []
        outdated: list[tuple[Path, ...]] = []
        with self._shared.metrics.serving():
            while not self._drain.is_requested:
                item = self.mailbox.next(behind=ended) if ended else self._await_item()
                if item is not None and item.member:
                    self._join(item)
                    continue
                attempts = attempts_of(item) if item is not None else ()
                steps += [api.Start(**attempt_fields(attempt)) for attempt in attempts]
                if not steps:
                    continue
                if item is not None:
                    self.execution.begin_early(item)
                outcomes = self._sent(steps)
                for outcome, paths in zip(outcomes, outdated, strict=False):
                    if outcome.outcome != "refused":
                        self._shared.discarder.discard(paths)
                # Not earlier: the store refuses a start on a device that an older attempt occupies.
                self._has_left(ended)
                started = _started(item, outcomes[len(outcomes) - len(attempts) :])
                ended, steps, outdated = None, [], []
                if started is None:
                    self.execution.end_early()
                    self._has_left(item)
                else:
                    ended, ends = started, self._run(started)
                    steps = [step for step, _ in ends]
                    # List files before the commit: after it other workers may write.
                    outdated = [
                        outdated_by(self._shared.settings.volumes, attempt, step.result)
                        if isinstance(step, api.Commit)
                        else ()
                        for step, attempt in ends
                    ]
                    if not steps:  # all models of a fused group have left it
                        self._has_left(ended)
                        ended = None
            self._report_end(steps)

    def _sent(self, steps: list[api.Report]) -> tuple[api.StepOutcome, ...]:
        """Send a report, repeated for `_SERVER_ERRORS_S` if kvs_api fails."""
        deadline = time.monotonic() + _SERVER_ERRORS_S
        while True:
            try:
                return self._reports.send(steps)
            except ServerError as error:
                if time.monotonic() > deadline:
                    raise
                log.warning("%s is reported again: %s", steps[0].task, error)
                time.sleep(_PAUSE_S)

    def _has_left(self, item: InboxItem | None) -> None:
        if item is not None:
            self.execution.dismiss(item)
            self._shared.queues.leave(item)

    def _join(self, item: InboxItem) -> None:
        """Run this worker's ranks of an attempt that another worker leads."""
        with _logged(item):
            self.execution.join(item, is_lost=lambda: name_of(item) in self._lost)
        self._shared.queues.leave(item)

    def _await_item(self) -> InboxItem | None:
        item = self.mailbox.next()
        if item is None:
            self._shared.children.done(self.devices)
            with self._shared.metrics.waiting():
                item = self.mailbox.wait()
        return item

    def _run(self, item: InboxItem) -> list[tuple[api.Commit | api.Fail, InboxItem]]:
        """Run the attempts of an item whose leases were just granted. Return the steps that end them."""
        key = TaskKey.parse(item.task)
        with _logged(item):
            began = time.monotonic()
            log.info("attempt started")
            self.lease.begin(item)
            if key.kind == "etl":
                self._shared.expect_models()
            answers = self.execution.run(item)
            seconds = time.monotonic() - began
            for _, answer in answers:
                self._shared.metrics.record_attempt(key.kind, answer, seconds)
                if isinstance(answer, Failure):
                    log.info("attempt failed after %.1f s: %s: %s", seconds, answer.kind, answer.message)
                else:
                    log.info("attempt done after %.1f s: %s rows", seconds, answer.rows)
        return [(_end(attempt, answer), attempt) for attempt, answer in answers]

    def _report_end(self, steps: list[api.Report]) -> None:
        """Report the end of the last attempt during a drain."""
        try:
            if steps:
                self._reports.send(steps)
        except RetryableError as error:
            log.warning("the store does not know of the end of %s: %s", steps[0].task, error)


def _started(item: InboxItem | None, outcomes: Sequence[api.StepOutcome]) -> InboxItem | None:
    """Return the item with the attempts that the store has granted; `None` without any."""
    if item is None:
        return None
    refused = {
        name_of(attempt)
        for attempt, outcome in zip(attempts_of(item), outcomes, strict=True)
        if outcome.outcome == "refused"
    }
    return without(item, refused) if refused else item


def _end(attempt: InboxItem, answer: TaskResult | Failure) -> api.Commit | api.Fail:
    """Return the step that ends an attempt."""
    if isinstance(answer, Failure):
        return api.Fail(**attempt_fields(attempt), failure=answer)
    return api.Commit(**attempt_fields(attempt), result=answer)


def _logged(item: InboxItem) -> AbstractContextManager[None]:
    """Label log records of the block with this attempt."""
    key = TaskKey.parse(item.task)
    return logs.about(
        experiment=item.experiment, run=key.run, model=key.model, sub_epoch=item.task, attempt=item.attempt
    )
