"""The loop that reads logs, queues messages and sends them.

Order of effects: read events, store their messages together with the cursors and the starts of attempts, send, store
the results. The store refuses this from an earlier leader, so it starts no attempt. A crash or another leader between
the last two sends a message once more, a minute later; nothing else repeats or loses one. Each target has one attempt
at a time, in a thread, so a slow receiver delays only its own messages.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from cerebro.contract.events import Event
from cerebro.contract.records import ExperimentSummary
from cerebro.contract.stored.health import HealthAnswer
from cerebro.contract.stored.notifications import (
    MAX_ATTEMPTS,
    EventKind,
    Message,
    Outbox,
    OutboxAnswer,
    StoredTarget,
    TargetStatus,
)
from cerebro.errors import CerebroError, IllegalEventError, NotFoundError, RetryableError, UnreadableError
from cerebro.state import ExperimentState
from cerebro.state.snapshots import SnapshotStore, restored
from controller.notifications.notices import Notice, messages_of, notice_of, quarantines, tests_of

log = logging.getLogger(__name__)

POLL_S = 2.0
"""Seconds between two reads of the logs."""
RETRY_S = (10.0, 60.0, 300.0, 1800.0)
"""Seconds after each failed attempt until the next one."""
LOST_S = 60.0
"""Seconds after the start of an attempt until another process, which does not know its result, starts the next one."""
_THREADS = 8


class Store(SnapshotStore, Protocol):
    """The part of the store that the sender uses."""

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """Return all experiments."""
        ...

    def events(self, experiment: str, after: int = 0) -> tuple[Event, ...]:
        """Return the next events after a cursor; empty if there are no more."""
        ...

    def workers_health(self) -> HealthAnswer:
        """Return the health of workers' machines."""
        ...

    def outbox(self) -> OutboxAnswer:
        """Return targets and outbox."""
        ...

    def replace_outbox(self, outbox: Outbox) -> None:
        """Replace the outbox. `ConflictError` if another controller leads."""
        ...


class Sender:
    """Sends the messages of all targets. `step` is called from one thread.

    Args:
        send: sends a message to an address; raises `CerebroError` with the reason of a failure.
        clock: seconds since the epoch.
    """

    def __init__(
        self, store: Store, send: Callable[[str, Message], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._store, self._send, self._clock = store, send, clock
        self._states: dict[str, ExperimentState] = {}
        """Folds of experiments with open runs."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="delivery")
        self._running: dict[str, tuple[Message, Future[None]]] = {}
        """Target -> message that a thread sends."""
        self.stop = threading.Event()

    def run(self) -> None:
        """Send until `stop` is set.

        Raises:
            ConflictError: another controller leads.
        """
        while not self.stop.is_set():
            try:
                self.step()
            except RetryableError as error:
                log.warning("notifications wait for the store: %s", error)
            self.stop.wait(POLL_S)

    def close(self) -> None:
        """Wait for the attempts in progress; their results are not stored."""
        self._threads.shutdown()

    def step(self) -> None:
        """Queue messages of new events, start due attempts, and store results.

        Raises:
            RetryableError: the store is unavailable. ConflictError: another controller leads.
        """
        found = self._store.outbox()
        targets = {each.target.id: each for each in found.targets}
        queued = self._queued(found.outbox, found.targets) if targets else Outbox()
        ended = {message.id: _reason(future) for message, future in self._running.values() if future.done()}
        settled, due = self._claimed(self._settled(queued, targets, ended), ended)
        if settled != found.outbox:
            self._store.replace_outbox(settled)
        for name in [name for name, (message, _) in self._running.items() if message.id in ended]:
            del self._running[name]  # not before the results are stored: they would be sent again
        for message in due:
            future = self._threads.submit(self._send, targets[message.target].url, message)
            self._running[message.target] = message, future

    def wait(self) -> None:
        """Wait until no attempt is in progress."""
        for _, future in self._running.values():
            future.exception()

    # --- new events ------------------------------------------------------------------------------

    def _queued(self, outbox: Outbox, stored: Iterable[StoredTarget]) -> Outbox:
        """Return the outbox with messages of new events and test requests."""
        targets = [each.target for each in stored if not each.suspended]
        since = max(outbox.since, min(each.target.created for each in stored))
        cursors, messages = {}, list(outbox.messages)
        for summary in self._store.experiments():
            name = summary.experiment.name
            # A target learns nothing of earlier events, so an experiment without later ones is not read.
            first = 0 if summary.last_event >= since else summary.last_seq
            cursor = outbox.cursors.get(name, first)
            if cursor > summary.last_seq:  # deleted, and created again
                self._states.pop(name, None)
                cursor = 0
            cursors[name] = summary.last_seq
            if cursor == summary.last_seq or summary.is_deleting:
                continue
            try:
                for notice in self._read(summary, cursor):
                    messages += messages_of(notice, targets, since)
            except NotFoundError:
                del cursors[name]
            except (UnreadableError, IllegalEventError) as error:
                log.warning(
                    "no notifications about events %d to %d of %s: %s", cursor, cursors[name], name, error
                )
                self._states.pop(name, None)
        until = max(outbox.quarantines_until, since)
        for notice in quarantines(self._store.workers_health(), until):
            messages += messages_of(notice, targets, since)
            until = notice.time
        waiting = {each.target for each in messages if each.kind is EventKind.TEST}
        tested = dict.fromkeys((target.id for target in targets), outbox.since)
        tested |= {name: status.tested for name, status in outbox.statuses.items()}
        messages += tests_of([target for target in targets if target.id not in waiting], tested)
        return outbox.model_copy(
            update={"cursors": cursors, "quarantines_until": until, "messages": tuple(messages)}
        )

    def _read(self, summary: ExperimentSummary, cursor: int) -> list[Notice]:
        """Return the notices of an experiment's events after a cursor, up to the newest one of its summary."""
        record, notices = summary.experiment, []
        state = self._states.pop(record.name, None) or restored(self._store, record.name)
        seq = min(cursor, state.seq)
        while seq < summary.last_seq and (events := self._store.events(record.name, seq)):
            for event in events:
                seq = event.seq
                if seq > summary.last_seq:
                    break
                if seq > state.seq:
                    state.apply(event)
                if seq > cursor and (notice := notice_of(record, state, event)) is not None:
                    notices.append(notice)
        if summary.open_runs:
            self._states[record.name] = state
        return notices

    # --- attempts --------------------------------------------------------------------------------

    def _settled(self, outbox: Outbox, targets: dict[str, StoredTarget], ended: dict[str, str]) -> Outbox:
        """Return the outbox with the results of ended attempts, without messages of removed and suspended targets.

        Args:
            ended: message -> reason of its failure, empty if it was delivered.
        """
        now = self._clock()
        statuses = {name: status for name, status in outbox.statuses.items() if name in targets}
        messages = []
        for message in outbox.messages:
            if message.target not in targets or targets[message.target].suspended:
                continue
            if message.id not in ended:
                messages.append(message)
                continue
            error, status = ended[message.id], statuses.get(message.target, TargetStatus())
            is_test, attempts = message.kind is EventKind.TEST, message.attempts + 1
            is_dropped = bool(error) and (is_test or attempts >= MAX_ATTEMPTS)
            if error and not is_dropped:
                due = now + RETRY_S[min(message.attempts, len(RETRY_S) - 1)]
                messages.append(message.model_copy(update={"attempts": attempts, "due": due}))
            results = {"error": error, "failed": status.failed + is_dropped}
            if not error:
                results |= {"sent": status.sent + 1, "last": now}
            if is_test:
                results["tested"] = message.tested
            statuses[message.target] = status.model_copy(update=results)
        return outbox.model_copy(update={"messages": tuple(messages), "statuses": statuses})

    def _claimed(self, outbox: Outbox, ended: Collection[str]) -> tuple[Outbox, list[Message]]:
        """Choose the first due message of each idle target; note the starts of their attempts in the outbox.

        Args:
            ended: messages whose attempt has ended.
        """
        now, due, messages = self._clock(), [], list(outbox.messages)
        busy = {target for target, (message, _) in self._running.items() if message.id not in ended}
        for place, message in enumerate(messages):
            if message.due <= now and message.target not in busy:
                busy.add(message.target)
                due.append(message)
                messages[place] = message.model_copy(update={"due": now + LOST_S})
        return outbox.model_copy(update={"messages": tuple(messages)}), due


def _reason(future: Future[None]) -> str:
    """Return the reason of a failed attempt; empty after a success."""
    error = future.exception()
    if error is None or isinstance(error, CerebroError):
        return str(error or "")
    # The text of an unexpected error may contain the address.
    return f"the library apprise failed with {type(error).__name__}"
