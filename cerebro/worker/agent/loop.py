"""A worker's agent: the threads and objects shared by its devices.

`__main__` creates the `Agent` and calls `run`. It reads this worker's inbox in the store, starts slots and returns
tasks at shutdown. It makes no scheduling decisions and runs no user code.

Each thread has one duty. A `Slot` per set of devices runs one task at a time in a child. *inbox* receives assignments
and passes them to the slots. *reports* renews leases and reports progress. One thread enforces the shutdown deadline.
The main thread ends idle children and, during a drain, returns waiting tasks. They share the thread-safe `Mailbox`,
`Lease`, `ChildPool` and `Drain`. `Housekeeping` has its own thread, and no task depends on it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from cerebro.contract.rest import api
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.errors import RetryableError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.usage.memory import own_group
from cerebro.worker.agent.drain import Drain
from cerebro.worker.agent.gangs.endpoint import GangEndpoint
from cerebro.worker.agent.gangs.member import decline
from cerebro.worker.agent.lease import attempt_fields, attempts_of
from cerebro.worker.agent.mailbox import DeviceQueues, Notification, overlap
from cerebro.worker.agent.processes.children import ChildPool
from cerebro.worker.agent.reports import Reports, Resources, SupersededError
from cerebro.worker.agent.settings import Settings
from cerebro.worker.agent.shared import Shared
from cerebro.worker.agent.slot import Slot
from cerebro.worker.health.machine_checks import NodeChecker
from cerebro.worker.health.stack_requests import StackReporter
from cerebro.worker.upkeep.checkpoint_removal import Discarder
from cerebro.worker.upkeep.housekeeping import Housekeeping
from cerebro.worker.upkeep.metrics import Metrics
from cerebro.worker.upkeep.shard_space import Reclaimer
from cerebro.worker.upkeep.task_logs import TaskLogs

log = logging.getLogger(__name__)

_INBOX_S, _CROWDED_S = 20.0, 1.0
"""Maximum seconds of one inbox read; pause after a read that failed or returned early without items."""

_LEAVING_TIMEOUT_S = 0.7
"""Seconds after the grace period to end children and report; then as many again for a final report."""


class Agent:
    """A worker's agent. `run` returns after `stop` or after another process takes over.

    Args:
        handlers: handler module by task kind.
        metrics: receives outcomes and usage.
        endpoint: this worker's endpoint for gangs; `None` without gangs.
    """

    def __init__(
        self,
        kvs: KvsClient,
        settings: Settings,
        handlers: Mapping[str, str],
        resources: Resources,
        metrics: Metrics | None = None,
        *,
        endpoint: GangEndpoint | None = None,
    ) -> None:
        metrics = metrics or Metrics({})
        self._kvs, self._settings = kvs, settings
        self._drain, self._changed = Drain(), Notification()
        self._has_news = threading.Event()
        """Set if a report is due at once."""
        self._slots: tuple[Slot, ...] = ()
        """Only the inbox thread replaces the tuple; a signal handler reads it."""
        discarder = Discarder(settings.volumes)
        self._reports = Reports(
            kvs,
            settings,
            resources,
            lambda: [slot.lease for slot in self._slots],
            self._drain,
            on_saved=discarder.discard_savepoints_before,
        )
        self._reclaimer = Reclaimer(kvs, settings.volumes)
        task_logs = TaskLogs(settings.task_log_bytes)
        self._children = ChildPool(settings, own_group(), len(resources.devices.devices))
        self._shared = Shared(
            kvs=kvs,
            settings=settings,
            handlers=handlers,
            devices=resources.devices,
            children=self._children,
            discarder=discarder,
            report_soon=self._has_news.set,
            gpu_share=partial(_gpu_share, resources),
            drain=self._drain,
            metrics=metrics,
            endpoint=endpoint,
            queues=DeviceQueues(self._free),
            reports=self._reports,
            task_logs=task_logs,
        )
        self._housekeeping = Housekeeping(
            resources.meter,
            self._reclaimer,
            metrics,
            self._reports,
            task_logs,
            expect_models=self._expect_models,
        )
        self._stack_reporter = StackReporter(kvs, settings.worker)
        self._checker = NodeChecker(kvs, settings, resources.devices, self._reports.incarnation)
        self._threads: list[threading.Thread] = []
        self._finished = threading.Event()

    def stop(self, why: str) -> None:
        """Drain: return waiting tasks now and running ones at their next batch. Safe in a signal handler."""
        self._drain.request(f"{why}: {self._settings.worker} was asked to end", self._settings.grace_s)
        self._wake()

    @property
    def wake_descriptor(self) -> int:
        """A byte written here wakes the main thread, so that it runs its signal handlers."""
        return self._changed.wake_descriptor

    def unready(self) -> str:
        """Return why the worker accepts no tasks, or "". For readiness probes; thread-safe."""
        if not self._threads:
            return f"{self._settings.worker} has not registered yet"
        return self._drain.why or self.unwell()

    def unwell(self) -> str:
        """Return a problem that a restart fixes, or "". For liveness probes; thread-safe.

        An unreachable store does not count.
        """
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        return "" if self._drain.is_requested or not dead else f"{', '.join(dead)} has ended"

    def run(self) -> None:
        """Register and work."""
        self._reclaimer.clear_rendezvous_root(self._settings.worker)
        last_duty = _started(self._end_in_time)
        self._register()
        self._threads = [last_duty]
        self._threads += (_started(self._read_inbox), _started(self._report_regularly))
        for name, duty in (("stacks", self._stack_reporter.run), ("checks", self._checker.run)):
            threading.Thread(target=duty, name=name, daemon=True).start()
        housekeeping = (self._finished, self._settings.report_s)
        threading.Thread(
            target=self._housekeeping.run, args=housekeeping, name="housekeeping", daemon=True
        ).start()
        try:
            while not self._drain.is_requested:
                self._changed.pause(self._children.tidy_in_s())
                self._children.tidy()
            self._leave()
        finally:
            self._finished.set()
            self._has_news.set()
            self._stack_reporter.end()
            self._checker.end()
            self._children.end_all()

    def _register(self) -> None:
        """Register this worker; retry for as long as kvs_api fails."""
        is_warned = False
        while True:
            try:
                self._reports.register(sorted(self._shared.handlers))
            except RetryableError as error:
                if not is_warned:
                    log.warning("not registered yet, retrying until kvs_api accepts it: %s", error)
                is_warned = True
                self._finished.wait(_CROWDED_S)
            else:
                return

    def _expect_models(self) -> None:
        # With an ETL handler, ETL tasks announce models sooner, and old data sets indicate nothing.
        if "etl" not in self._shared.handlers:
            self._shared.expect_models()

    # --- slots -----------------------------------------------------------------------------------

    def _slot(self, devices: tuple[int, ...]) -> Slot:
        """Return the slot of these devices. The first call creates it; it lasts as long as the agent."""
        found = next((slot for slot in self._slots if slot.devices == devices), None)
        if found is None:
            slot = found = self._new_slot(devices)
            self._slots += (slot,)
            self._threads.append(_started(lambda: self._serve(slot), f"devices {devices}"))
        return found

    def _new_slot(self, devices: tuple[int, ...]) -> Slot:
        return Slot(self._shared, devices)

    def _serve(self, slot: Slot) -> None:
        try:
            slot.work()
        except SupersededError:
            self._drain_superseded()
        finally:
            slot.has_ended = True
            self._changed.wake()
        # If this thread ended, the kernel would kill processes it started, which others may use now.
        self._finished.wait()

    def _free(self, devices: tuple[int, ...]) -> None:
        """Wake slots that wait for these devices."""
        for slot in self._slots:
            if slot.devices != devices and overlap(slot.devices, devices):
                slot.mailbox.wake()

    def _wake(self) -> None:
        """Wake every thread. Safe in a signal handler."""
        for slot in self._slots:
            slot.mailbox.wake()
        self._changed.wake()

    # --- the end ---------------------------------------------------------------------------------

    def _drain_superseded(self) -> None:
        """Drain at once, because a newer process has this worker's name."""
        if not self._drain.is_requested:
            log.warning("superseded by a newer process of %s", self._settings.worker)
        self._drain.request("superseded", 0.0, is_superseded=True)
        self._wake()

    def _leave(self) -> None:
        """Return waiting tasks, so that other workers run them at once, and wait for running ones."""
        while True:
            # Check first: tasks that an ended slot left waiting are returned below.
            is_over = all(slot.has_ended for slot in self._slots)
            if not self._drain.is_superseded:
                self._announce_leaving()
            if is_over:
                return
            self._changed.pause(None)

    def _announce_leaving(self) -> None:
        failure = Failure(kind=FailureKind.PREEMPTED, message=f"{self._drain.why} before this task began")
        items = [item for slot in self._slots for item in slot.mailbox.take_all()]
        for part in (item for item in items if item.member and self._shared.endpoint is not None):
            # Only the leader reports to the store, and it may be slow to reach.
            threading.Thread(
                target=decline,
                args=(part, self._shared.endpoint, failure.message),
                name="declining",
                daemon=True,
            ).start()
        steps = [
            api.Fail(**attempt_fields(attempt), failure=failure)
            for item in items
            if not item.member
            for attempt in attempts_of(item)
        ]
        try:
            # Send even without steps: a worker known to leave gets no more tasks.
            self._reports.send(steps)
        except RetryableError as error:
            tasks = ", ".join(step.task for step in steps)
            log.warning("the store does not know of the end of %s: %s", tasks or "this worker", error)
        except SupersededError:
            log.warning("superseded by a newer process of %s", self._settings.worker)

    def _end_in_time(self) -> None:
        """End the process after its grace period, even during an installation or if the store does not answer."""
        self._drain.wait()
        if not self._threads:
            os._exit(0)  # not registered yet, so no task is assigned
        if self._drain.is_superseded or self._finished.wait(self._drain.remaining_s + _LEAVING_TIMEOUT_S):
            return
        log.warning("not done in time; ending now")
        last_word = threading.Thread(target=self._give_up, daemon=True)
        last_word.start()
        last_word.join(_LEAVING_TIMEOUT_S)
        os._exit(1)

    def _give_up(self) -> None:
        reason = f"{self._drain.why}; it was not done in time"
        failure = Failure(kind=FailureKind.PREEMPTED, message=reason)
        items = [item for slot in self._slots for item in slot.lease.attempts]
        if items:
            self._reports.send([api.Fail(**attempt_fields(item), failure=failure) for item in items])

    # --- the other threads -----------------------------------------------------------------------

    def _report_regularly(self) -> None:
        # Also during a drain, because attempts still run under their leases.
        while self._is_report_due():
            leases = [(slot, item) for slot in self._slots for item in slot.lease.attempts]
            renewals: list[api.Report] = [api.Renew(**attempt_fields(item)) for _, item in leases]
            try:
                outcomes = self._reports.send(renewals, self._housekeeping.newest_usage())
            except RetryableError as error:
                log.warning("no report: %s", error)
                continue
            except SupersededError:
                self._drain_superseded()
                return
            if self._children.is_crowded():
                self._changed.wake()
            for (slot, item), outcome in zip(leases, outcomes, strict=True):
                if outcome.outcome == "refused":
                    slot.lease.lose(item)
                    slot.mailbox.wake()

    def _is_report_due(self) -> bool:
        """Wait until a report is due. Return False at shutdown."""
        self._has_news.wait(self._settings.report_s)
        self._has_news.clear()
        return not self._finished.is_set()

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
                self._finished.wait(_CROWDED_S)
                continue
            if not items and time.monotonic() - began < _INBOX_S / 2:
                # The store has more readers than it lets wait.
                self._finished.wait(_CROWDED_S)
            for item in items:
                cursor = item.seq
                if item.body is not None:
                    self._reclaimer.touch(item.body.dataset)
                if item.cancel:
                    self._cancel(item)
                elif item.preempt:
                    self._request_release(item)
                elif item.check:
                    self._checker.request(item.check)
                elif item.stacks:
                    self._stack_reporter.request(item, self._slots)
                else:
                    self._slot(item.devices).mailbox.put(item)
            if items and self._drain.is_requested:
                self._changed.wake()

    def _cancel(self, item: InboxItem) -> None:
        """Revoke an attempt. The item does not name its devices."""
        if not any(slot.mailbox.remove(item) for slot in self._slots):
            for slot in self._slots:
                slot.lose(item)

    def _request_release(self, item: InboxItem) -> None:
        """Preempt an attempt. The item does not name its devices."""
        for slot in self._slots:
            slot.lease.request_release(item)
            slot.mailbox.wake()


def _gpu_share(resources: Resources, devices: tuple[int, ...]) -> float:
    here, meter = resources.devices, resources.meter
    if not here.gpus or meter is None:
        return 0.0
    shares = [meter.gpu_share(number) for number in devices]
    return max((1.0 if share is None else share for share in shares), default=0.0)


def _started(duty: Callable[[], None], name: str = "") -> threading.Thread:
    thread = threading.Thread(target=_vital, args=(duty,), name=name or duty.__name__, daemon=True)
    thread.start()
    return thread


def _vital(duty: Callable[[], None]) -> None:
    """Run the duty of a thread. If it raises, end the process, because assigned tasks would never start."""
    try:
        duty()
    except BaseException:
        log.exception("%s failed: the worker ends, so that it is restarted", threading.current_thread().name)
        os._exit(1)
