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
from contextlib import suppress
from pathlib import Path
from typing import Any

from cerebro.contract import api
from cerebro.contract.tasks import (
    EtlTask,
    Failure,
    FailureKind,
    InboxItem,
    ModelTask,
    TaskBody,
    TaskResult,
    TrainTask,
)
from cerebro.errors import PermanentError, RequirementsError, RetryableError, StorageFullError
from cerebro.runtime import logs
from cerebro.runtime.kvs import KvsClient
from cerebro.runtime.tracebacks import line_of
from cerebro.runtime.usage.memory import own_group
from cerebro.state.keys import TaskKey
from cerebro.worker.agent.attempt_runner import AttemptRunner, clear_up
from cerebro.worker.agent.children import ChildPool
from cerebro.worker.agent.discarding import Discarder, outdated_by
from cerebro.worker.agent.drain import Drain
from cerebro.worker.agent.environment import archive_folder, python_for
from cerebro.worker.agent.housekeeping import Housekeeping
from cerebro.worker.agent.lease import Lease
from cerebro.worker.agent.mailbox import Mailbox
from cerebro.worker.agent.metrics import Metrics
from cerebro.worker.agent.process import ChildProcess, ChildSpec
from cerebro.worker.agent.reclaiming import Reclaimer
from cerebro.worker.agent.reports import Reports, Resources, SupersededError
from cerebro.worker.agent.settings import Settings

log = logging.getLogger(__name__)

_KINDS: dict[type[Exception], FailureKind] = {
    RequirementsError: FailureKind.REQUIREMENTS,
    StorageFullError: FailureKind.STORAGE_FULL,
    RetryableError: FailureKind.UNAVAILABLE,
    # The archive or the code is not in the store, or cannot be opened: no task could do without.
    PermanentError: FailureKind.DATA,
}
"""Why an attempt could not begin; the first match counts."""

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
        self._kvs, self._settings, self._handlers = kvs, settings, handlers
        self._mailbox, self._lease, self._drain = Mailbox(), Lease(), Drain()
        self._reports = Reports(kvs, settings, resources, self._lease, self._drain)
        self._reclaimer = Reclaimer(kvs, settings.volumes)
        self._discarder = Discarder()
        self._housekeeping = Housekeeping(resources.meter, self._reclaimer, self._metrics, self._reports)
        self._children = ChildPool(settings, own_group())
        self._previous: TaskBody | None = None
        """What the child did last, where it did it to its end."""
        self._early: tuple[InboxItem, ChildProcess] | None = None
        """What the child was told to do before the store granted it."""
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
        self._reports.register(sorted(self._handlers))
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
                self._begin_early(item)
            outcomes = self._reports.send(steps)
            if outcomes[0].outcome != "refused":
                self._discarder.discard(outdated)
            is_started = item is not None and outcomes[-1].outcome != "refused"
            steps, outdated = [], ()
            if not is_started:
                self._end_early()
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

    def _begin_early(self, item: InboxItem) -> None:
        """Have the child train while the store is asked, where a unit follows one of the same code.

        The store answers after a flush to disk. It grants nearly all that waits here; what it refuses ends as an
        attempt that was taken back. Not a model's first unit: it makes the model's folder, which must not come back
        after the experiment was deleted.
        """
        body = item.body
        if not self._may_begin_early(item) or body is None:
            return
        child = self._children.take_again(self._handlers[body.kind])
        if child is not None:
            self._early = item, child
            with suppress(OSError):  # it has ended, and is found to have when it is followed
                self._tell(child, item, {})

    def _may_begin_early(self, item: InboxItem) -> bool:
        body, before = item.body, self._previous
        if not (isinstance(body, TrainTask) and isinstance(before, TrainTask)):
            return False
        return body.checkpoint is not None and (body.code, body.archive) == (before.code, before.archive)

    def _end_early(self) -> None:
        """The store did not grant what the child was told to do: nothing is left of it."""
        if self._early is None:
            return
        (item, _), self._early = self._early, None
        self._children.done(is_spent=True)
        log = self._task_log(item)
        log.unlink(missing_ok=True)
        with suppress(OSError):  # others have logs there
            log.parent.rmdir()

    def _run(self, item: InboxItem) -> api.Report:
        """Run an attempt whose lease was just taken; returns the step that ends it."""
        key = TaskKey.parse(item.task)
        with logs.about(
            experiment=item.experiment, run=key.run, model=key.model, unit=item.task, attempt=item.attempt
        ):
            began = time.monotonic()
            log.info("attempt started")
            answer = self._attempt(item)
            seconds = time.monotonic() - began
            self._metrics.ended(key.kind, answer, seconds)
            if isinstance(answer, Failure):
                log.info("attempt failed after %.1f s: %s: %s", seconds, answer.kind, answer.message)
            else:
                log.info("attempt done after %.1f s: %s rows", seconds, answer.rows)
        if isinstance(answer, Failure):
            return api.Fail(**_named(item), failure=answer)
        return api.Commit(**_named(item), result=answer)

    def _attempt(self, item: InboxItem) -> TaskResult | Failure:
        self._lease.begin(item)
        try:
            if self._drain.is_asked and self._early is None:
                reason = f"{self._drain.why} before this task began"
                return Failure(kind=FailureKind.PREEMPTED, message=reason)
            return self._answer(item)
        except (RetryableError, PermanentError) as error:
            kind = next(kind for known, kind in _KINDS.items() if isinstance(error, known))
            return Failure(kind=kind, message=str(error))
        except OSError as error:
            return Failure(kind=FailureKind.CRASH, message=f"the process could not be started: {error}")
        except SupersededError:
            raise
        except Exception as error:
            # Whatever it is: one attempt fails of it, with its cause, and not the worker with all that waits here.
            log.exception("%s could not be followed", item.task)
            reason = f"the worker itself failed at this task: {line_of(error)}. Its log has more"
            return Failure(kind=FailureKind.CRASH, message=reason)

    def _answer(self, item: InboxItem) -> TaskResult | Failure:
        answer: TaskResult | Failure | None = None
        try:
            answer = self._follow(item)
            return answer
        finally:
            # Without an answer nobody knows what the process does now. And the rows that follow a bad one are
            # preprocessed by processes that have not met it.
            is_bad_etl = isinstance(item.body, EtlTask) and isinstance(answer, Failure)
            self._children.done(is_spent=answer is None or is_bad_etl)
            if isinstance(answer, Failure) and answer.kind is FailureKind.OUT_OF_MEMORY:
                self._children.end_idle("memory ran out")

    def _follow(self, item: InboxItem) -> TaskResult | Failure:
        body, self._previous = item.body, None
        assert body is not None
        if self._early is not None:
            (_, child), self._early = self._early, None
        else:
            asked = time.monotonic()
            child = self._child_for(item)
            codes = {} if body.code == child.code else {body.code: self._kvs.code(body.code).encoded}
            try:
                self._tell(child, item, codes, asked)
            except OSError:
                return child.reap()
        self._hint(child)
        limit_s = body.hang_timeout_s if isinstance(body, ModelTask) else self._settings.etl_hang_timeout_s
        answer = AttemptRunner(
            child,
            item,
            worker=self._settings.worker,
            limit_s=limit_s,
            lease=self._lease,
            drain=self._drain,
            notification=self._mailbox,
            on_notification=lambda: self._on_notification(child),
        ).follow()
        if not child.is_alive() and not self._lease.is_lost:
            clear_up(self._settings.volumes, item)
        if isinstance(answer, TaskResult):
            self._previous = body
        return answer

    def _tell(
        self, child: ChildProcess, item: InboxItem, codes: dict[str, str], asked: float | None = None
    ) -> None:
        assert item.body is not None
        body, began = item.body.model_dump(mode="json"), time.monotonic() if asked is None else asked
        child.run(body, item.attempt, codes, self._task_log(item), asked=began)

    def _task_log(self, item: InboxItem) -> Path:
        return self._settings.volumes.task_log(item.experiment, item.task, item.attempt)

    def _on_notification(self, child: ChildProcess) -> None:
        self._children.end_idle_if_memory_is_short()
        if not self._drain.is_asked:
            self._hint(child)
        elif not self._drain.is_superseded:
            self._announce_leaving([])

    def _hint(self, child: ChildProcess) -> None:
        """Tell the child which task comes next, so that it loads that model meanwhile."""
        item = self._mailbox.peek()
        if item is None or item.body is None or self._handlers[item.body.kind] != child.setting.handler:
            return
        if item.body.code != child.code:
            return  # another process will do it
        if self._lease.hinted != (item.task, item.attempt):
            self._lease.hinted = (item.task, item.attempt)
            try:
                child.preload(item.body.model_dump(mode="json"))
            except OSError:
                log.info("the child ended before it could be told of %s", item.task)

    # --- the child -------------------------------------------------------------------------------

    def _child_for(self, item: InboxItem) -> ChildProcess:
        body = item.body
        assert body is not None
        folder = archive_folder(self._kvs, self._settings.volumes, body.archive)
        setting = ChildSpec(
            handler=self._handlers[body.kind],
            python=python_for(folder, self._settings.volumes),
            archive=folder,
        )
        return self._children.take(setting)

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
