"""A worker's reports to the store: heartbeats, progress, task starts and ends, and departure.

The agent's `loop` and its slots call `Reports.send`; only this module sends reports to kvs_api, one request at a time.
It keeps the incarnation, which distinguishes this process from earlier ones of the same name. The inbox is read in
`loop`.
"""

from __future__ import annotations

import logging
import shutil
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from cerebro.contract.events import LivePoint
from cerebro.contract.records import (
    COMPUTES,
    TASKS_BETWEEN,
    Replica,
    WorkerRecord,
    WorkerUsage,
)
from cerebro.contract.rest import api
from cerebro.contract.tasks.failures import FailureKind
from cerebro.runtime.background_query import BackgroundQuery
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.usage import cores
from cerebro.runtime.usage.meter import UsageMeter
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.agent.drain import Drain
from cerebro.worker.agent.lease import Lease, name_of
from cerebro.worker.agent.settings import Settings

log = logging.getLogger(__name__)

_VOLUME_WAIT_S = 2.0
"""Maximum seconds that a report waits for a volume; far shorter than a lease."""


def _arithmetic() -> tuple[str, ...]:
    computes = cores.arithmetic()
    return (f"{COMPUTES}{computes}",) if computes else ()


class SupersededError(Exception):
    """A newer process registered under this worker's name: this one must end."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of the machine."""

    devices: WorkerDevices
    replicas: Callable[[], tuple[Replica, ...]]
    """Returns the complete training partitions found on the volume."""
    meter: UsageMeter | None = None
    """Measures the worker's usage; `None` disables it."""
    host: str
    machine_cores: int = 0
    """Cores that it shares with other workers; 0: not known."""
    pid: int
    memory_bytes: int | None = None
    """Memory for all its processes; `None` if unknown."""
    address: str = ""
    """Address for other workers of a gang."""


@dataclass(kw_only=True)
class _PendingReport:
    """One thread's report and the store's answer."""

    steps: tuple[api.Report, ...]
    usage: WorkerUsage | None
    is_sent: bool = False
    outcomes: tuple[api.StepOutcome, ...] = ()
    error: Exception | None = None


class Reports:
    """Sends reports, one at a time. Thread-safe.

    The store drops a point that arrives after its attempt's commit, so requests must not overtake each other.
    Reports that threads submit during a request share the next request.

    Args:
        leases: returns the leases of all attempts that may run here.
        on_saved: called with each savepoint that the store has accepted.
    """

    def __init__(
        self,
        kvs: KvsClient,
        settings: Settings,
        resources: Resources,
        leases: Callable[[], Iterable[Lease]],
        drain: Drain,
        *,
        on_saved: Callable[[api.Save], None] = lambda save: None,
    ) -> None:
        self._on_saved = on_saved
        self._kvs, self._settings, self._resources = kvs, settings, resources
        self._leases, self._drain = leases, drain
        self.incarnation = uuid.uuid4().hex
        self.reclaim = 0
        """Latest number of the list of unused data sets."""
        self._replicas = BackgroundQuery("replicas", resources.replicas)
        self._reported_replicas = 0
        """Number of the newest answer about replicas that the store has."""
        self._free_bytes = BackgroundQuery("checkpoints", self._query_free_bytes)
        self._queueing, self._sending = threading.Lock(), threading.Lock()
        self._waiting: list[_PendingReport] = []
        """Reports for the next request, while one is being sent."""

    def register(self, kinds: Sequence[str]) -> None:
        """Make this process the worker of its name, for tasks of these kinds."""
        here = self._resources.devices
        record = WorkerRecord(
            worker=self._settings.worker,
            incarnation=self.incarnation,
            weight=self._settings.weight or float(len(here.devices)),
            cores=self._settings.cores,
            machine_cores=self._resources.machine_cores,
            gpus=here.gpus,
            devices=here.devices,
            kinds=(*kinds, *(_arithmetic() if "train" in kinds else ())),
            replicas=self._resources.replicas(),
            volume=self._settings.pod.name if self._settings.pod else None,
            pod=self._settings.pod,
            host=self._resources.host,
            pid=self._resources.pid,
            memory_bytes=self._resources.memory_bytes,
            address=self._resources.address,
        )
        self._kvs.register(record)
        log.info("registered %s with %d partitions", record.worker, len(record.replicas))

    def changed(self) -> None:
        """Check the volume again, and report the worker's replicas if they have changed."""
        self._replicas.request()

    def send(
        self, steps: Sequence[api.Report], usage: WorkerUsage | None = None
    ) -> tuple[api.StepOutcome, ...]:
        """Send steps after their pending savepoints and live points. Each report is a heartbeat.

        Args:
            usage: measurement since the last report, if any.

        Raises:
            SupersededError: another process has this worker's name now.
            RetryableError: the store was away for longer than the client's `retry_for_s`.
        """
        self._refresh(steps)
        for step in steps:
            if isinstance(step, (api.Commit, api.Fail)):
                for lease in self._leases():
                    lease.end(step)
        report = _PendingReport(steps=tuple(steps), usage=usage)
        with self._queueing:
            self._waiting.append(report)
        with self._sending:
            if not report.is_sent:
                with self._queueing:
                    batch, self._waiting = self._waiting, []
                self._send(batch)
        if report.error is not None:
            raise report.error
        return report.outcomes

    def _send(self, batch: Sequence[_PendingReport]) -> None:
        """Send the reports of several threads in one request."""
        for report in batch:
            report.is_sent = True
        try:
            outcomes = iter(self._request(batch))
        except Exception as error:  # noqa: BLE001 - raised in each thread that waits for the answer
            for report in batch:
                report.error = error
            return
        for report in batch:
            report.outcomes = tuple(islice(outcomes, len(report.steps)))

    def _request(self, batch: Sequence[_PendingReport]) -> tuple[api.StepOutcome, ...]:
        """Send one request. Return the outcomes of the steps, in order."""
        steps = tuple(step for report in batch for step in report.steps)
        # Savepoints come first: an attempt may end in the same report.
        ended = {name_of(step) for step in steps if isinstance(step, api.Commit)}
        unreported = [
            (lease, step)
            for lease in self._leases()
            for step in lease.unreported
            if name_of(step) not in ended
        ]
        number, replicas = self._replicas.newest()
        request = api.ReportRequest(
            incarnation=self.incarnation,
            lease_s=self._settings.lease_s,
            steps=(*(step for _, step in unreported), *steps),
            live=self._take_points(),
            checkpoint_free_bytes=self._free_bytes.newest()[1],
            running=TASKS_BETWEEN.join(each for lease in self._leases() for each in lease.described) or None,
            replicas=replicas if number > self._reported_replicas else None,
            leaving="" if self._drain.is_superseded else self._drain.why,
            usage=next((report.usage for report in batch if report.usage is not None), None),
        )
        answer = self._kvs.report(self._settings.worker, request)
        self._reported_replicas = number
        if not answer.current:
            raise SupersededError
        self.reclaim = answer.reclaim
        for step, outcome in zip(request.steps, answer.outcomes, strict=True):
            if outcome.outcome == "refused":
                log.info("refused %s of %s attempt %s: %s", step.op, step.task, step.attempt, outcome.reason)
        for (lease, reported), outcome in zip(unreported, answer.outcomes, strict=False):
            lease.confirm(reported)
            if outcome.outcome != "refused" and isinstance(reported, api.Save):
                self._on_saved(reported)
        return answer.outcomes[len(unreported) :]

    def _take_points(self) -> dict[str, tuple[LivePoint, ...]]:
        found: dict[str, tuple[LivePoint, ...]] = defaultdict(tuple)
        for lease in self._leases():
            item, points = lease.take_points()
            if item and points:
                found[item.experiment] += points
        return dict(found)

    def _refresh(self, steps: Sequence[api.Report]) -> None:
        """Query the volumes, and wait briefly if a step needs the answer in the same report.

        Not while a report is sent, which renews leases: a file system may hang. Later answers go into a later
        report.
        """
        number = self._free_bytes.request()
        if any(isinstance(s, api.Fail) and s.failure.kind is FailureKind.STORAGE_FULL for s in steps):
            self._free_bytes.wait(number, _VOLUME_WAIT_S)
        if any(isinstance(s, api.Commit) and "/etl/train/" in s.task for s in steps):
            self._replicas.wait(self._replicas.request(), _VOLUME_WAIT_S)

    def _query_free_bytes(self) -> int | None:
        try:
            return shutil.disk_usage(self._settings.volumes.checkpoints).free
        except OSError:
            return None
