"""Duties of a worker between tasks: measure usage, shorten logs, free space on the shard volume, prepare for models.

A thread of its own, and none that the worker could not do without: a driver or a file system that hangs keeps this
thread for ever, and neither a lease nor a task.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from cerebro.contract.records import WorkerUsage
from cerebro.errors import RetryableError
from cerebro.runtime.usage.meter import PAUSE_S, UsageMeter
from cerebro.worker.agent.metrics import Metrics
from cerebro.worker.agent.reclaiming import Reclaimer
from cerebro.worker.agent.reports import Reports
from cerebro.worker.agent.task_logs import TaskLogs

log = logging.getLogger(__name__)


class Housekeeping:
    """`run` is the thread's; `newest_usage` may be called by any.

    Args:
        meter: of what the worker uses; `None`: it does not say.
        metrics: is told what was measured.
        reports: knows the number of the list of data sets that nobody uses, and is told when replicas change.
        task_logs: of attempts that run.
        expect_models: called once the shard volume holds a data set, and again for each new one.
    """

    def __init__(
        self,
        meter: UsageMeter | None,
        reclaimer: Reclaimer,
        metrics: Metrics,
        reports: Reports,
        task_logs: TaskLogs,
        *,
        expect_models: Callable[[], None],
    ) -> None:
        self._task_logs, self._expect_models = task_logs, expect_models
        self._datasets: set[str] = set()
        self._meter, self._reclaimer, self._metrics, self._reports = meter, reclaimer, metrics, reports
        self._lock = threading.Lock()
        self._newest: WorkerUsage | None = None
        self._measured = -PAUSE_S

    def newest_usage(self) -> WorkerUsage | None:
        """What was measured last, once."""
        with self._lock:
            found, self._newest = self._newest, None
        return found

    def run(self, finished: threading.Event, pause_s: float) -> None:
        """Go on until `finished`, with pauses of so many seconds."""
        self._try(self._reclaimer.sweep)
        self._try(self._prepare)
        while not finished.wait(pause_s):
            self._try(self._task_logs.keep_short)
            self._try(self._measure)
            self._try(self._reclaim)
            self._try(self._prepare)

    def _measure(self) -> None:
        if self._meter is None or time.monotonic() - self._measured < PAUSE_S:
            return
        self._measured = time.monotonic()
        usage = self._meter.measure()
        self._metrics.use(usage)
        with self._lock:
            self._newest = usage

    def _reclaim(self) -> None:
        if self._reclaimer.act(self._reports.reclaim):
            self._reports.changed()

    def _prepare(self) -> None:
        held = self._reclaimer.held()
        appeared, self._datasets = held - self._datasets, held
        if appeared:
            self._expect_models()

    def _try(self, duty: Callable[[], None]) -> None:
        try:
            duty()
        except RetryableError as error:
            log.warning("%s left for later: %s", duty.__name__.strip("_"), error)
        except Exception:
            # Whatever it is: it concerns no task, and is tried again.
            log.exception("%s left for later", duty.__name__.strip("_"))
