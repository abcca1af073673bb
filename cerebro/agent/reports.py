"""What a worker tells the store: that it is there, how far its task is, how tasks began and ended, that it leaves.

Keeps the incarnation, by which the store tells this process from earlier ones of the same name.
"""

from __future__ import annotations

import logging
import shutil
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cerebro.agent.ending import Ending
from cerebro.agent.lease import Lease
from cerebro.agent.settings import Settings
from cerebro.contract import api
from cerebro.contract.records import Holding, WorkerRecord, WorkerUsage
from cerebro.errors import RetryableError
from cerebro.kvs import KvsClient
from cerebro.usage.meter import Meter

log = logging.getLogger(__name__)


class SupersededError(Exception):
    """A newer process registered under this worker's name: this one must end."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the machine offers."""

    gpus: tuple[str, ...]
    holdings: Callable[[], tuple[Holding, ...]]
    """Looks at the volume: complete training partitions found there."""
    meter: Meter | None = None
    """Of what the worker uses of it; `None`: it does not say."""
    host: str
    machine_cores: int = 0
    """Cores that it shares with other workers; 0: not known."""
    pid: int


class Reports:
    """Safe for several threads: one report at a time, because a point that arrives after its attempt's commit is not
    kept."""

    def __init__(
        self, kvs: KvsClient, settings: Settings, resources: Resources, lease: Lease, ending: Ending
    ) -> None:
        self._kvs, self._settings, self._resources = kvs, settings, resources
        self._lease, self._ending = lease, ending
        self.incarnation = uuid.uuid4().hex
        self.reclaim = 0
        """Number of the list of data sets that nobody uses, as last heard."""
        self._changed = threading.Event()
        self._sending = threading.Lock()

    def register(self, kinds: Sequence[str]) -> None:
        """Make this process the worker of its name, for tasks of these kinds."""
        gpus = self._resources.gpus
        record = WorkerRecord(
            worker=self._settings.worker,
            incarnation=self.incarnation,
            weight=self._settings.weight or float(len(gpus) or 1),
            cores=self._settings.cores,
            machine_cores=self._resources.machine_cores,
            gpus=gpus,
            kinds=tuple(kinds),
            holdings=self._resources.holdings(),
            volume=self._settings.pod.name if self._settings.pod else None,
            pod=self._settings.pod,
            host=self._resources.host,
            pid=self._resources.pid,
        )
        self._kvs.register(record)
        log.info("registered %s with %d partitions", record.worker, len(record.holdings))

    def changed(self) -> None:
        """The worker's holdings may have changed: the next report tells them."""
        self._changed.set()

    def send(
        self, steps: Sequence[api.Report], usage: WorkerUsage | None = None
    ) -> tuple[api.StepOutcome, ...]:
        """Send steps, with the live points that belong before them; each report is a sign of life, too.

        Args:
            usage: where it was measured since the last report.

        Raises:
            SupersededError: another process has this worker's name now.
            RetryableError: the store was away for longer than the client's patience.
        """
        for step in steps:
            if isinstance(step, (api.Commit, api.Fail)):
                self._lease.end(step)
        with self._sending:
            item, points = self._lease.take_points()
            if any(isinstance(s, api.Commit) and "/etl/train/" in s.task for s in steps):
                self._changed.set()
            if has_changed := self._changed.is_set():
                # Before looking: what changes from now on is told the next time.
                self._changed.clear()
            request = api.ReportRequest(
                incarnation=self.incarnation,
                lease_s=self._settings.lease_s,
                steps=tuple(steps),
                live={item.experiment: points} if item and points else {},
                checkpoint_free_bytes=self._free_bytes(),
                running=self._lease.described,
                holdings=self._resources.holdings() if has_changed else None,
                leaving="" if self._ending.is_superseded else self._ending.why,
                usage=usage,
            )
            try:
                answer = self._kvs.report(self._settings.worker, request)
            except RetryableError:
                if has_changed:
                    self._changed.set()
                raise
        if not answer.current:
            raise SupersededError
        self.reclaim = answer.reclaim
        for step, outcome in zip(steps, answer.outcomes, strict=True):
            if outcome.outcome == "refused":
                log.info("refused %s of %s attempt %s: %s", step.op, step.task, step.attempt, outcome.reason)
        return answer.outcomes

    def _free_bytes(self) -> int | None:
        try:
            return shutil.disk_usage(self._settings.volumes.checkpoints).free
        except OSError:
            return None
