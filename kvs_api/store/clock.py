"""The store's clock: milliseconds that only grow. Leases, leadership and silence of workers depend on it.

`Database` owns the one `Clock` of a process and sends its count with each call of the script. Times that people
see, such as times of events, are wall-clock times of Redis instead.

A machine's wall clock may be set, by hand or by a time service. An hour back would keep a dead worker's lease
for an hour; an hour forward would end all leases at once. So no lease depends on it. Redis offers no other
clock, so each process of kvs_api counts by its machine's monotonic clock, from the stored value. Each call of
the script takes the larger of the stored value and the process's count, uses it and stores it. With several
processes on different machines, the clock never decreases and never runs faster than time.

The clock stands still while no process of kvs_api runs. Workers cannot renew leases then, and no lease ends. A new
process may be behind a running one, by at most the time since the running one's last call. A lease may end too
early or too late by at most this time. The controller calls every second or two.

The clock also stands still while the machine sleeps (``CLOCK_MONOTONIC``), as its workers do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Clock:
    """The store's clock in one process. Thread-safe.

    Args:
        join: reads the stored clock in milliseconds, or starts it. If it raises, the next call joins.
        elapsed: monotonic seconds, from any origin.
    """

    def __init__(self, join: Callable[[], int], elapsed: Callable[[], float] = time.monotonic) -> None:
        self._join, self._elapsed = join, elapsed
        self._joining = threading.Lock()
        self._ahead_ms: float | None = None
        """Offset of the store's clock to `elapsed`."""

    def now(self) -> int:
        """Return this process's count in milliseconds.

        The store's clock is the maximum with the stored value.
        """
        if self._ahead_ms is None:
            with self._joining:
                if self._ahead_ms is None:
                    joined = self._join()
                    # Read after the answer: a slow answer leaves this process behind the others, never ahead.
                    self._ahead_ms = joined - self._elapsed() * 1000
        return int(self._ahead_ms + self._elapsed() * 1000)
