"""Summaries of complete data sets, each computed by a child process and kept in memory."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from pydantic import ValidationError

from cerebro.contract.runs import EtlPlan
from cerebro.runtime.volumes import Volumes, statistics_file
from dispatcher.data.process import Job, Outcome
from dispatcher.sandbox.bounded_processes import BoundedProcesses
from dispatcher.sandbox.slots import BusyError

COMPUTE_S = 60.0
_MAX_KEPT = 10
"""Maximum number of summaries in memory: at most 16 MiB each, usually 100 KB."""
_RETRY_S = 60.0
"""Time until a failed computation is repeated."""


class Summaries:
    """Computes and keeps summaries. Safe for several threads; a thread lives as long as a computation."""

    def __init__(self, volumes: Volumes, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._volumes, self._monotonic = volumes, monotonic
        self._processes = BoundedProcesses("dispatcher.data.process", at_once=1)
        self._lock = threading.Lock()
        self._outcomes: OrderedDict[str, tuple[Outcome, float]] = OrderedDict()
        """Key -> outcome, and the time of its computation."""
        self._threads: dict[str, threading.Thread] = {}
        self._retries: list[float] = []
        """Times from which failed computations are repeated."""
        self._version = 0

    def version(self) -> int:
        """Return a number that increases when a call of `find` may return or compute another summary."""
        with self._lock:
            now = self._monotonic()
            expired = [until for until in self._retries if until <= now]
            for until in expired:
                self._retries.remove(until)
            self._version += len(expired)
            return self._version

    def find(self, plan: EtlPlan, created: float, *, wait_s: float = 0.0) -> Outcome | None:
        """Return the summary of a complete data set; `None` while it is computed, or if a version before 0.4.0 made it.

        Args:
            created: time of the run that completed the data set.
            wait_s: maximum time to wait for the summary.
        """
        first = next(iter(plan.splits))
        if not self._volumes.statistics(plan.dataset, first, plan.splits[first][0].partition).exists():
            return None
        key = f"{plan.dataset} {created}"
        with self._lock:
            if (found := self._find(key)) is not None:
                return found
            thread = self._threads.get(key)
            if thread is None:
                thread = threading.Thread(target=self._compute, args=(key, plan), daemon=True)
                thread.start()
                self._threads[key] = thread
        thread.join(wait_s)
        with self._lock:
            return self._find(key)

    def _find(self, key: str) -> Outcome | None:
        outcome, computed = self._outcomes.get(key, (None, 0.0))
        if outcome is not None and outcome.reason and self._monotonic() >= computed + _RETRY_S:
            return None
        return outcome

    def _compute(self, key: str, plan: EtlPlan) -> None:
        outcome: Outcome | None = None
        try:
            outcome = self._outcome(plan)
        except BusyError:
            pass  # the next request for it computes again
        except OSError as error:  # no memory for a process
            outcome = Outcome(reason=f"its process could not start: {error}")
        finally:
            with self._lock:
                del self._threads[key]
                self._version += 1
                if outcome is not None:
                    now = self._monotonic()
                    self._outcomes[key] = outcome, now
                    self._retries += [now + _RETRY_S] if outcome.reason else []
                while len(self._outcomes) > _MAX_KEPT:
                    self._outcomes.popitem(last=False)

    def _outcome(self, plan: EtlPlan) -> Outcome:
        files = {
            split: tuple(statistics_file(plan.dataset, split, part.partition) for part in parts)
            for split, parts in plan.splits.items()
        }
        job = Job(files=files, shared=str(self._volumes.shared), cpu_s=int(COMPUTE_S))
        result = self._processes.run(job.model_dump_json().encode(), timeout_s=COMPUTE_S)
        try:
            return Outcome.model_validate_json(result.output)
        except ValidationError:
            return Outcome(reason="it took too long" if result.is_late else result.ending)
