"""Background jobs in one thread, in small steps: reading long logs, filling lists.

`Reader` owns the only `Background`; `__main__` starts it, tests call `run` instead. Python runs one thread at a time,
so a long job would delay every page. A job consists of steps of a few milliseconds, and the thread sleeps a quarter
of a step's duration between steps. Jobs live in memory; a job that fails is dropped and logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from cerebro.errors import CerebroError

_log = logging.getLogger(__name__)

_PAUSE = 0.25
"""Pause after a step, as a fraction of its duration."""

Step = Callable[[], bool]
"""Executes one step of a job. Returns True when the job is done."""


class Background:
    """Round-robin scheduler of jobs by key. Safe for several threads. Without `start`, only `run` executes jobs."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._jobs: OrderedDict[Hashable, Step] = OrderedDict()
        self._changed = threading.Condition()
        self.is_started = False

    def start(self) -> None:
        """Start a daemon thread."""
        self.is_started = True
        threading.Thread(target=self._loop, name="background", daemon=True).start()

    def submit(self, key: Hashable, step: Step) -> None:
        """Add a job that calls `step` until it returns True, unless a job with this key exists."""
        with self._changed:
            if key not in self._jobs:
                self._jobs[key] = step
                self._changed.notify()

    def has(self, key: Hashable) -> bool:
        """True if a job with this key exists."""
        with self._changed:
            return key in self._jobs

    def run(self) -> None:
        """Execute all jobs to completion in the current thread."""
        while self._step_next():
            pass

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs)
            began = self._monotonic()
            self._step_next()
            time.sleep(_PAUSE * max(0.0, self._monotonic() - began))

    def _step_next(self) -> bool:
        """Execute one step of the next job. Returns False without jobs."""
        with self._changed:
            if not self._jobs:
                return False
            key, step = next(iter(self._jobs.items()))
            self._jobs.move_to_end(key)
        try:
            is_done = step()
        except CerebroError as error:
            _log.info("background job failed job=%s cause=%s", key, error)
            is_done = True  # a request for the same data meets the same error and submits the job again
        except Exception:  # noqa: BLE001 - outermost frame of the loop: other jobs must continue
            _log.exception("background job failed job=%s", key)
            is_done = True
        if is_done:
            with self._changed:
                self._jobs.pop(key, None)
        return True
