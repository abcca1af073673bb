"""The store's clock: milliseconds that only grow, by elapsed time alone. Leases, leadership and silence count by it.

A machine's clock may be set, by hand or by a time service. Set back an hour, it would keep a dead worker's lease for
an hour; set forward, it would end all leases at once. So nothing that decides reads it. Redis has no other clock to
offer; therefore each process of kvs_api brings its own. It joins the clock where the stored value is and counts on from
there by its machine's monotonic clock, which nobody can set. Each call of the script stores the greater of the stored
value and the one that the process counts, and uses that: with several processes, on machines whose clocks began at
different times, the clock never goes back, and it never runs faster than time does.

Time that no process counted did not pass: while kvs_api is away nobody can renew a lease, so none ends. A process that
joins while another counts may be behind it, by as long as the other one was not asked; it never is by more. That is the
most by which a lease may end too early, or too late. The controller asks every second or two.

A machine that sleeps does not count either (``CLOCK_MONOTONIC``): its workers slept, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Clock:
    """The store's clock as one process counts it. Safe for use by many threads.

    Args:
        join: reads the stored clock, in milliseconds; starts it if there is none. May raise: then the next call joins.
        elapsed: seconds on a clock that only grows, from any beginning.
    """

    def __init__(self, join: Callable[[], int], elapsed: Callable[[], float] = time.monotonic) -> None:
        self._join, self._elapsed = join, elapsed
        self._joining = threading.Lock()
        self._ahead_ms: float | None = None
        """By how much the store's clock is ahead of `elapsed`."""

    def now(self) -> int:
        """Milliseconds as this process counts them. The store's clock is this, or the stored value if it is more."""
        if self._ahead_ms is None:
            with self._joining:
                if self._ahead_ms is None:
                    joined = self._join()
                    # Read after the answer: a slow answer leaves this process behind, never ahead of the others.
                    self._ahead_ms = joined - self._elapsed() * 1000
        return int(self._ahead_ms + self._elapsed() * 1000)
