"""Background duties of a worker: measure usage, shorten logs, free shard space, prepare for models.

The agent's `loop` starts one `Housekeeping` in its own thread, because a hanging driver or file system may block it
forever. Leases and tasks do not depend on it. Other modules of this package do the work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from cerebro.contract.records import WorkerUsage
from cerebro.errors import RetryableError
from cerebro.runtime.usage.meter import PAUSE_S, UsageMeter
from cerebro.worker.agent.reports import Reports
from cerebro.worker.upkeep.metrics import Metrics
from cerebro.worker.upkeep.shard_space import Reclaimer
from cerebro.worker.upkeep.task_logs import TaskLogs

log = logging.getLogger(__name__)


class Housekeeping:
    """Background duties. One thread calls `run`; any may call `newest_usage`.

    Args:
        meter: measures the worker's usage; `None` disables it.
        metrics: receives measurements.
        reports: has the number of the list of unused data sets; is notified of replica changes.
        task_logs: logs of running attempts.
        expect_models: called when the shard volume has a first data set, and for each new one.
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
        """Return the latest measurement once, then `None`."""
        with self._lock:
            found, self._newest = self._newest, None
        return found

    def run(self, finished: threading.Event, pause_s: float) -> None:
        """Repeat the duties every `pause_s` seconds until `finished`."""
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
        self._metrics.record_usage(usage)
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
            # Any error: no task is affected, and the duty is tried again.
            log.exception("%s left for later", duty.__name__.strip("_"))
