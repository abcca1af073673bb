"""Work that no request waits for: long logs are read and rows of lists are filled, in slices, by one thread.

The interpreter runs one thread at a time, so a long piece of work would make every page wait: a job is cut into steps
of some milliseconds, and between two steps the thread rests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from cerebro.errors import CerebroError

_log = logging.getLogger(__name__)

_REST = 0.25
"""Of the time that a step took."""

Step = Callable[[], bool]
"""Does a slice of a job; whether the job is done."""


class Background:
    """Jobs by key, done in turns. Safe for several threads; without `start` nothing runs but by `run`."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._jobs: OrderedDict[Hashable, Step] = OrderedDict()
        self._news = threading.Condition()
        self.is_started = False

    def start(self) -> None:
        """Begin, in a thread that ends with the process."""
        self.is_started = True
        threading.Thread(target=self._loop, name="background", daemon=True).start()

    def submit(self, key: Hashable, step: Step) -> None:
        """Have `step` called until it says that it is done, unless there is such a job already."""
        with self._news:
            if key not in self._jobs:
                self._jobs[key] = step
                self._news.notify()

    def has(self, key: Hashable) -> bool:
        """Whether such a job is under way."""
        with self._news:
            return key in self._jobs

    def run(self) -> None:
        """Do all jobs to their end, here and now."""
        while self._turn():
            pass

    def _loop(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._jobs)
            began = self._monotonic()
            self._turn()
            time.sleep(_REST * max(0.0, self._monotonic() - began))

    def _turn(self) -> bool:
        """One step of the job whose turn it is; whether there was one."""
        with self._news:
            if not self._jobs:
                return False
            key, step = next(iter(self._jobs.items()))
            self._jobs.move_to_end(key)
        try:
            is_done = step()
        except CerebroError as error:
            _log.info("background job given up job=%s cause=%s", key, error)
            is_done = True  # whoever wants it meets the same error, and asks for it again
        except Exception:  # noqa: BLE001 - the loop's outermost frame: other jobs go on
            _log.exception("background job failed job=%s", key)
            is_done = True
        if is_done:
            with self._news:
                self._jobs.pop(key, None)
        return True
