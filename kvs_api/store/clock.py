"""The store's clock: milliseconds that only grow. Leases, leadership and silence depend on it.

A machine's wall clock may be set, by hand or by a time service. An hour back would keep a dead worker's lease
for an hour; an hour forward would end all leases at once. So no decision reads it. Redis offers no other
clock; therefore each process of kvs_api counts by its machine's monotonic clock, starting from the stored
value. Each call of the script takes the greater of the stored value and the process's count, uses it and
stores it. With several processes on different machines, the clock never decreases and never runs faster than
time.

Time that no process counts does not pass: while kvs_api is away no worker can renew a lease, so no lease
ends. A new process may be behind a running one, at most by the time since that one's last call. A lease may
end too early or too late by at most this time. The controller calls every second or two.

A sleeping machine does not count either (``CLOCK_MONOTONIC``), and neither do its workers.
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
