"""The loop every worker runs.

Threads with one duty each: the main thread runs one task at a time in the child; *inbox* waits for what the controller
assigns; *reports* keeps leases and says how far the task is; one sees to it that a wanted end comes. They meet in
`Mailbox`, `Lease` and `Drain`, which are safe for that. One more does the `Housekeeping`, which no task waits for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cerebro.contract import api
from cerebro.contract.tasks import Failure, FailureKind, InboxItem
from cerebro.errors import RetryableError
from cerebro.runtime import logs
from cerebro.runtime.kvs import KvsClient
from cerebro.runtime.usage.memory import own_group
from cerebro.state.keys import TaskKey
from cerebro.worker.agent.children import ChildPool
from cerebro.worker.agent.discarding import Discarder, outdated_by
from cerebro.worker.agent.drain import Drain
from cerebro.worker.agent.execution import Execution
from cerebro.worker.agent.housekeeping import Housekeeping
from cerebro.worker.agent.lease import Lease
from cerebro.worker.agent.mailbox import Mailbox
from cerebro.worker.agent.metrics import Metrics
from cerebro.worker.agent.reclaiming import Reclaimer
from cerebro.worker.agent.reports import Reports, Resources, SupersededError
from cerebro.worker.agent.settings import Settings

log = logging.getLogger(__name__)

_INBOX_S, _CROWDED_S = 20.0, 1.0
"""How long one read of the inbox waits, and the pause after one that was answered early, with nothing."""

_LEAVING_TIMEOUT_S = 0.7
"""Past the grace, for ending the child and telling the store; and once more for a last word if that did not do."""


class Agent:
    """A worker. `run` returns when `stop` was called or the worker was superseded.

    Args:
        handlers: task kind -> module of its handler.
        metrics: is told what ends here, and what is used.
    """

    def __init__(
        self,
        kvs: KvsClient,
        settings: Settings,
        handlers: Mapping[str, str],
        resources: Resources,
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics or Metrics({})
        self._kvs, self._settings, self._handlers = kvs, settings, sorted(handlers)
        self._mailbox, self._lease, self._drain = Mailbox(), Lease(), Drain()
        self._reports = Reports(kvs, settings, resources, self._lease, self._drain)
        self._reclaimer = Reclaimer(kvs, settings.volumes)
        self._discarder = Discarder()
        self._housekeeping = Housekeeping(resources.meter, self._reclaimer, self._metrics, self._reports)
        self._children = ChildPool(settings, own_group())
        self._execution = Execution(
            kvs,
            settings,
            handlers,
            children=self._children,
            lease=self._lease,
            drain=self._drain,
            mailbox=self._mailbox,
            leave=lambda: self._announce_leaving([]),
        )
        self._threads: list[threading.Thread] = []
        self._finished = threading.Event()

    def stop(self, why: str) -> None:
        """End soon: what waits is given back now, the running attempt at its next batch. Safe in a signal handler."""
        self._drain.ask(f"{why}: {self._settings.worker} was asked to end", self._settings.grace_s)
        self._mailbox.wake()

    def unready(self) -> str:
        """Why tasks cannot come: for readiness probes. Safe in any thread."""
        if not self._threads:
            return f"{self._settings.worker} has not registered yet"
        return self._drain.why or self.unwell()

    def unwell(self) -> str:
        """What a new start would mend: for liveness probes. A store that is away is none of it. Safe in any thread."""
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        return "" if self._drain.is_asked or not dead else f"{', '.join(dead)} has ended"

    def run(self) -> None:
        """Register and work."""
        last_duty = _started(self._end_in_time)
        self._reports.register(self._handlers)
        self._threads = [last_duty, _started(self._read_inbox), _started(self._report_regularly)]
        housekeeping = (self._finished, self._settings.report_s)
        threading.Thread(
            target=self._housekeeping.run, args=housekeeping, name="housekeeping", daemon=True
        ).start()
        try:
            self._work()
        except SupersededError:
            log.warning("superseded by a newer process of %s", self._settings.worker)
        finally:
            self._finished.set()
            self._children.end_all()

    # --- main thread: one task after another -----------------------------------------------------

    def _work(self) -> None:
        steps: list[api.Report] = []
        outdated: tuple[Path, ...] = ()
        while not self._drain.is_asked:
            item = self._mailbox.next() if steps else self._await_item()
            if item is not None:
                steps.append(api.Start(**_named(item)))
            if not steps:
                continue
            if item is not None:
                self._execution.begin_early(item)
            outcomes = self._reports.send(steps)
            if outcomes[0].outcome != "refused":
                self._discarder.discard(outdated)
            is_started = item is not None and outcomes[-1].outcome != "refused"
            steps, outdated = [], ()
            if not is_started:
                self._execution.end_early()
            elif item is not None:
                steps = [self._run(item)]
                # Looked up before the commit: from then on others may write.
                outdated = outdated_by(self._settings.volumes, item) if steps[0].op == "commit" else ()
        self._announce_leaving(steps)

    def _await_item(self) -> InboxItem | None:
        with self._metrics.waiting():
            item = self._mailbox.wait(self._children.tidy_in_s())
        if item is None:
            self._children.tidy()
        return item

    def _run(self, item: InboxItem) -> api.Report:
        """Run an attempt whose lease was just taken; returns the step that ends it."""
        key = TaskKey.parse(item.task)
        with logs.about(
            experiment=item.experiment, run=key.run, model=key.model, unit=item.task, attempt=item.attempt
        ):
            began = time.monotonic()
            log.info("attempt started")
            self._lease.begin(item)
            answer = self._execution.run(item)
            seconds = time.monotonic() - began
            self._metrics.ended(key.kind, answer, seconds)
            if isinstance(answer, Failure):
                log.info("attempt failed after %.1f s: %s: %s", seconds, answer.kind, answer.message)
            else:
                log.info("attempt done after %.1f s: %s rows", seconds, answer.rows)
        if isinstance(answer, Failure):
            return api.Fail(**_named(item), failure=answer)
        return api.Commit(**_named(item), result=answer)

    # --- the end ---------------------------------------------------------------------------------

    def _announce_leaving(self, steps: list[api.Report]) -> None:
        """Report `steps`, and give back what waits in the inbox, so that others take it at once."""
        failure = Failure(kind=FailureKind.PREEMPTED, message=f"{self._drain.why} before this task began")
        while (item := self._mailbox.next()) is not None:
            steps.append(api.Fail(**_named(item), failure=failure))
        try:
            # Also without steps: who is known to leave is given nothing more.
            self._reports.send(steps)
        except RetryableError as error:
            tasks = ", ".join(step.task for step in steps)
            log.warning("the store does not know of the end of %s: %s", tasks or "this worker", error)

    def _end_in_time(self) -> None:
        """Nothing may keep the process past its grace: no installation of packages, no store that does not answer."""
        self._drain.wait()
        if not self._threads:
            os._exit(0)  # not registered yet: there is nothing to give back
        if self._drain.is_superseded or self._finished.wait(self._drain.left_s + _LEAVING_TIMEOUT_S):
            return
        log.warning("not done in time; ending now")
        last_word = threading.Thread(target=self._give_up, daemon=True)
        last_word.start()
        last_word.join(_LEAVING_TIMEOUT_S)
        os._exit(1)

    def _give_up(self) -> None:
        item = self._lease.item
        if item is not None:
            reason = f"{self._drain.why}; it was not done in time"
            failure = Failure(kind=FailureKind.PREEMPTED, message=reason)
            self._reports.send([api.Fail(**_named(item), failure=failure)])

    # --- the other threads -----------------------------------------------------------------------

    def _report_regularly(self) -> None:
        # Also while the worker ends: its running attempt is still its own.
        while not self._finished.wait(self._settings.report_s):
            item = self._lease.item
            renewals: list[api.Report] = [api.Renew(**_named(item))] if item is not None else []
            try:
                outcomes = self._reports.send(renewals, self._housekeeping.newest_usage())
            except RetryableError as error:
                log.warning("no report: %s", error)
                continue
            except SupersededError:
                self._drain.ask("superseded", 0.0, is_superseded=True)
                self._mailbox.wake()
                return
            if self._children.is_crowded():
                self._mailbox.wake()
            if outcomes and outcomes[0].outcome == "refused" and item is not None:
                self._lease.lose(item)
                self._mailbox.wake()

    def _read_inbox(self) -> None:
        cursor = 0
        while not self._finished.is_set():
            began = time.monotonic()
            try:
                items = self._kvs.inbox(
                    self._settings.worker, self._reports.incarnation, cursor, wait_s=_INBOX_S
                )
            except RetryableError as error:
                log.warning("inbox not read: %s", error)
                continue
            if not items and time.monotonic() - began < _INBOX_S / 2:
                # The store has more readers than it lets wait.
                self._finished.wait(_CROWDED_S)
            for item in items:
                cursor = item.seq
                if item.body is not None:
                    self._reclaimer.touch(item.body.dataset)
                if not item.cancel:
                    self._mailbox.put(item)
                elif not self._mailbox.remove(item):
                    self._lease.lose(item)
                    self._mailbox.wake()


def _named(item: InboxItem) -> dict[str, Any]:
    """What names an attempt."""
    return {"experiment": item.experiment, "task": item.task, "attempt": item.attempt}


def _started(duty: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=_vital, args=(duty,), name=duty.__name__, daemon=True)
    thread.start()
    return thread


def _vital(duty: Callable[[], None]) -> None:
    """Run a thread without which the worker is none: were it to end alone, tasks would be assigned and never start."""
    try:
        duty()
    except BaseException:
        log.exception("%s ended: the worker ends with it, to be started anew", duty.__name__)
        os._exit(1)
