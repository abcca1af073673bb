"""The loop every worker runs.

Three threads with one duty each: the main thread runs one task at a time in the child; *inbox* waits for what the
controller assigns; *reports* keeps leases and says how far the task is. They meet in `Mailbox` and `Lease`,
both locked.
"""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebro.agent.environment import archive_folder, python_for
from cerebro.agent.lease import Lease
from cerebro.agent.mailbox import Mailbox
from cerebro.agent.process import ChildProcess, Setting
from cerebro.agent.settings import Settings
from cerebro.contract import api
from cerebro.contract.events import LivePoint
from cerebro.contract.records import Holding, WorkerRecord
from cerebro.contract.tasks import EtlTask, Failure, FailureKind, InboxItem, ModelTask, TaskResult
from cerebro.errors import PermanentError, RequirementsError, RetryableError, StorageFullError
from cerebro.kvs import KvsClient

log = logging.getLogger(__name__)

_START_S = 300.0
"""A child that has not said that it is ready for so long never will."""

_IDLE_S = 60.0
"""A child with nothing to do is ended after this: it holds a few hundred MB."""


class SupersededError(Exception):
    """A newer process registered under this worker's name: this one must end."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the machine offers."""

    gpus: tuple[str, ...]
    holdings: Callable[[], tuple[Holding, ...]]
    """Looks at the volume: complete training partitions found there."""
    host: str
    pid: int


class Agent:
    """A worker. `run` returns when `stop` was called or the worker was superseded.

    Args:
        handlers: task kind -> module of its handler.
    """

    def __init__(
        self, kvs: KvsClient, settings: Settings, handlers: Mapping[str, str], resources: Resources
    ) -> None:
        self._kvs, self._settings, self._handlers = kvs, settings, handlers
        self._resources = resources
        self.incarnation = uuid.uuid4().hex
        self._mailbox = Mailbox()
        self._lease = Lease()
        self._child: ChildProcess | None = None
        self._stopping = threading.Event()
        # One report at a time: points that arrive after their attempt's commit are not kept.
        self._reporting = threading.Lock()

    def stop(self) -> None:
        """End soon: the running attempt is given back, not failed. Safe in a signal handler."""
        self._stopping.set()
        self._mailbox.wake()

    def run(self) -> None:
        """Register and work."""
        self._register()
        for duty in (self._read_inbox, self._report_regularly):
            threading.Thread(target=_vital, args=(duty,), name=duty.__name__, daemon=True).start()
        try:
            self._work()
        except SupersededError:
            log.warning("superseded by a newer process of %s", self._settings.worker)
        finally:
            self._end_child()

    def _register(self) -> None:
        gpus = self._resources.gpus
        record = WorkerRecord(
            worker=self._settings.worker,
            incarnation=self.incarnation,
            weight=self._settings.weight or float(len(gpus) or 1),
            cores=self._settings.cores,
            gpus=gpus,
            kinds=tuple(sorted(self._handlers)),
            holdings=self._resources.holdings(),
            host=self._resources.host,
            pid=self._resources.pid,
        )
        self._kvs.register(record)
        log.info("registered %s", record)

    # --- main thread: one task after another -----------------------------------------------------

    def _work(self) -> None:
        steps: list[api.Report] = []
        while not self._stopping.is_set():
            item = self._mailbox.next() if steps else self._await_item()
            if item is not None:
                steps.append(api.Start(experiment=item.experiment, task=item.task, attempt=item.attempt))
            if not steps:
                continue
            outcomes = self._report(steps)
            is_started = item is not None and outcomes[-1].outcome != "refused"
            steps = []
            if item is not None and is_started:
                steps = [self._run(item)]
        self._give_back(steps)

    def _await_item(self) -> InboxItem | None:
        began = time.monotonic()
        item = self._mailbox.wait(_IDLE_S)
        # A bell without an item, say of a task that was taken back at once, is no reason to let the child go cold.
        if item is None and time.monotonic() - began >= _IDLE_S:
            self._end_child()
        return item

    def _run(self, item: InboxItem) -> api.Report:
        """Run an attempt whose lease was just taken; returns the step that ends it."""
        self._lease.begin(item)
        log.info("running %s attempt %s", item.task, item.attempt)
        try:
            answer = self._answer(item)
        except RequirementsError as error:
            answer = Failure(kind=FailureKind.REQUIREMENTS, message=str(error))
        except StorageFullError as error:
            answer = Failure(kind=FailureKind.STORAGE_FULL, message=str(error))
        except RetryableError as error:
            answer = Failure(kind=FailureKind.UNAVAILABLE, message=str(error))
        except PermanentError as error:
            # The archive or the code is not in the store, or cannot be opened: no task could do without.
            answer = Failure(kind=FailureKind.DATA, message=str(error))
        except OSError as error:
            answer = Failure(kind=FailureKind.CRASH, message=f"the process could not be started: {error}")
        named: Any = {"experiment": item.experiment, "task": item.task, "attempt": item.attempt}
        if isinstance(answer, Failure):
            log.info("failed %s attempt %s: %s", item.task, item.attempt, answer.message)
            return api.Fail(**named, failure=answer)
        return api.Commit(**named, result=answer)

    def _answer(self, item: InboxItem) -> TaskResult | Failure:
        body = item.body
        assert body is not None
        child = self._child_for(item)
        codes = {} if body.code in child.known_codes else {body.code: self._kvs.code(body.code).encoded}
        path = self._settings.volumes.task_log(item.experiment, item.task, item.attempt)
        try:
            child.run(body.model_dump(mode="json"), item.attempt, codes, path)
        except OSError:
            return self._bury(child)
        self._hint(child)
        return self._follow(child, body)

    def _follow(self, child: ChildProcess, body: Any) -> TaskResult | Failure:
        """Listen to the child until it answers, dies, hangs, or the attempt is taken away."""
        limit_s = body.hang_timeout_s if isinstance(body, ModelTask) else self._settings.etl_hang_timeout_s
        advanced, position = time.monotonic(), (-1, -1)
        with selectors.DefaultSelector() as selector:
            selector.register(child.channel, selectors.EVENT_READ)
            selector.register(self._mailbox, selectors.EVENT_READ)
            selector.register(child.end, selectors.EVENT_READ)
            while True:
                message = child.channel.pending()
                if message is None:
                    # Importing torch is not the user's code and may take long on a busy machine.
                    patience_s = limit_s if child.is_ready else max(limit_s, _START_S)
                    ready = {
                        key.fileobj for key, _ in selector.select(advanced + patience_s - time.monotonic())
                    }
                    if self._stopping.is_set() or self._lease.is_lost:
                        self._end_child()
                        return Failure(kind=FailureKind.PREEMPTED, message="the attempt was taken back")
                    if not ready:
                        self._end_child()
                        return Failure(
                            kind=FailureKind.HANG,
                            message=f"no batch for {limit_s:g} s: the process was ended. If the work is "
                            "only slow, raise "
                            "run_fit(hang_timeout_s=...)",
                        )
                    if self._mailbox in ready:
                        self._mailbox.drain()
                        self._hint(child)
                    # What it said before it ended counts.
                    message = child.channel.pending()
                    if message is None and (child.end in ready or child.channel.is_closed):
                        return self._bury(child)
                if message is None:
                    continue
                if message["is"] == "ready":
                    child.is_ready, advanced = True, time.monotonic()
                    continue
                if message["is"] == "done":
                    return TaskResult.model_validate(message["result"])
                if message["is"] == "failed":
                    return Failure.model_validate(message["failure"])
                if (message["rows"], message["batch"]) != position:
                    advanced, position = time.monotonic(), (message["rows"], message["batch"])
                self._lease.progress(_point(self._lease.item, self._settings.worker, message))

    def _hint(self, child: ChildProcess) -> None:
        """Tell the child which task comes next, so that it loads that model meanwhile."""
        item = self._mailbox.peek()
        if item is None or item.body is None or self._handlers[item.body.kind] != child.setting.handler:
            return
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
        setting = Setting(
            code=body.code,
            handler=self._handlers[body.kind],
            python=python_for(folder, self._settings.volumes),
            archive=folder,
        )
        child = self._child
        # An ETL child must not have run user code before it forks its cores: one child for each ETL task.
        if child is None or child.setting != setting or isinstance(body, EtlTask) or not child.is_alive():
            self._end_child()
            child = self._child = ChildProcess(setting, self._settings)
        return child

    def _bury(self, child: ChildProcess) -> Failure:
        self._child = None
        child.channel.close()
        obituary = child.obituary()
        child.kill()
        return Failure(kind=FailureKind.CRASH, message=obituary)

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    # --- reports ---------------------------------------------------------------------------------

    def _report(self, steps: Sequence[api.Report]) -> tuple[api.StepOutcome, ...]:
        """Send steps, with the live points that belong before them."""
        if any(isinstance(step, (api.Commit, api.Fail)) for step in steps):
            self._lease.end()
        with self._reporting:
            item, points = self._lease.take_points()
            made_partition = any(isinstance(s, api.Commit) and "/etl/train/" in s.task for s in steps)
            answer = self._kvs.report(
                self._settings.worker,
                api.ReportRequest(
                    incarnation=self.incarnation,
                    lease_s=self._settings.lease_s,
                    steps=tuple(steps),
                    live={item.experiment: points} if item and points else {},
                    checkpoint_free_bytes=self._free_bytes(),
                    running=self._lease.described,
                    holdings=self._resources.holdings() if made_partition else None,
                ),
            )
        if not answer.current:
            raise SupersededError
        for step, outcome in zip(steps, answer.outcomes, strict=True):
            if outcome.outcome == "refused":
                log.info("refused %s of %s attempt %s: %s", step.op, step.task, step.attempt, outcome.reason)
        return answer.outcomes

    def _give_back(self, steps: list[api.Report]) -> None:
        """Before a wanted end: what waits in the inbox goes back, so that others take it at once."""
        failure = Failure(kind=FailureKind.PREEMPTED, message=f"{self._settings.worker} was asked to end")
        while (item := self._mailbox.next()) is not None:
            steps.append(
                api.Fail(experiment=item.experiment, task=item.task, attempt=item.attempt, failure=failure)
            )
        if steps:
            self._report(steps)

    def _free_bytes(self) -> int | None:
        try:
            return shutil.disk_usage(self._settings.volumes.checkpoints).free
        except OSError:
            return None

    # --- the other two threads -------------------------------------------------------------------

    def _report_regularly(self) -> None:
        while not self._stopping.wait(self._settings.report_s):
            item = self._lease.item
            renewals: list[api.Report] = []
            if item is not None:
                renewals = [api.Renew(experiment=item.experiment, task=item.task, attempt=item.attempt)]
            try:
                outcomes = self._report(renewals)
            except RetryableError as error:
                log.warning("no report: %s", error)
                continue
            except SupersededError:
                self.stop()
                return
            if outcomes and outcomes[0].outcome == "refused" and item is not None:
                self._lease.lose(item)
                self._mailbox.wake()

    def _read_inbox(self) -> None:
        cursor = 0
        while not self._stopping.is_set():
            try:
                items = self._kvs.inbox(self._settings.worker, self.incarnation, cursor, wait_s=20)
            except RetryableError as error:
                log.warning("inbox not read: %s", error)
                continue
            for item in items:
                cursor = item.seq
                if not item.cancel:
                    self._mailbox.put(item)
                elif not self._mailbox.remove(item):
                    self._lease.lose(item)
                    self._mailbox.wake()


def _vital(duty: Callable[[], None]) -> None:
    """Run a thread without which the worker is none: were it to end alone, tasks would be assigned and never start."""
    try:
        duty()
    except BaseException:
        log.exception("%s ended: the worker ends with it, to be started anew", duty.__name__)
        os._exit(1)


def _point(item: InboxItem | None, worker: str, message: dict[str, Any]) -> LivePoint | None:
    if item is None:
        return None
    fields = {name: message[name] for name in ("rows", "rows_failed", "total_rows", "batch", "values")}
    return LivePoint(task=item.task, attempt=item.attempt, worker=worker, **fields)
