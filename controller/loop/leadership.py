"""Leadership of one controller among several, by a lease in the store; and resignation when the process ends."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from cerebro.contract.rest import api
from cerebro.errors import CerebroError, RetryableError
from cerebro.runtime.kvs.client import KvsClient
from controller.metrics import Metrics
from controller.settings import Settings

log = logging.getLogger(__name__)

LEASE_S = 5.0
"""Lease of the leadership in seconds.

A restarted controller has its predecessor's name and takes over at once; another one waits at most this long.
"""

SOON_S = 0.001
"""Remaining lease in seconds: the shortest possible."""

_LIMIT_S = 1.0
"""Maximum seconds to wait for the store; otherwise the lease expires by itself."""


class Leadership:
    """The lease of the leading controller. Owned by the loop; `term` and `newest_term` are thread-safe.

    The loop calls `keep` before each effect. Background threads check `term` or `is_certain`.

    Args:
        attended: returns the active runs to publish with each renewal; `None` before they are known.
        take_over: called when a term begins, because another controller may have led before.
        lose: called while another controller leads.

    Attributes:
        newest_term: newest term of this process, even an ended one; 0 if it never led.
        turned: time of the loop's last turn, regardless of leadership and store.
    """

    def __init__(
        self,
        kvs: KvsClient,
        settings: Settings,
        metrics: Metrics,
        *,
        attended: Callable[[], api.Attended | None],
        take_over: Callable[[], None],
        lose: Callable[[], None],
    ) -> None:
        self._kvs, self._settings, self._metrics = kvs, settings, metrics
        self._attended, self._take_over, self._lose = attended, take_over, lose
        self._led_until = 0.0
        self.newest_term = 0
        self.turned = time.monotonic()

    def keep(self) -> int:
        """Return the term, or 0 if another controller leads. Calls the store only after a third of the lease."""
        self.turned = time.monotonic()
        return self.newest_term if self.turned < self._led_until else self.renew()

    def renew(self) -> int:
        """Renew the lease and publish the active runs; return the term, or 0 if another controller leads."""
        now = self.turned = time.monotonic()
        answer = self._kvs.lead(
            self._settings.holder,
            LEASE_S,
            process=self._settings.process,
            is_start=not self.newest_term,
            open_runs=self._settings.open_runs,
            attended=self._attended(),
        )
        if answer.term == 0:
            self._metrics.stood_by()
            self._log_leader(answer.holder)
            self._lose()
            return 0
        if answer.term != self.newest_term:
            self._take_over()
        self.newest_term = answer.term
        self._metrics.leading.set(1)
        self._led_until = now + LEASE_S / 3
        return answer.term

    def doubt(self) -> None:
        """Ask the store before the next effect: it has refused one, so another controller may lead."""
        self._led_until = 0.0

    def hand_over(self) -> None:
        """Let another controller lead."""
        with contextlib.suppress(RetryableError):
            self._kvs.lead(self._settings.holder, SOON_S, process=self._settings.process)
        self.doubt()

    @property
    def term(self) -> int:
        """The term that this controller certainly leads, else 0."""
        term = self.newest_term
        return term if self.is_certain(term) else 0

    def is_certain(self, term: int) -> bool:
        """True if no other controller can have led since that term began. Thread-safe."""
        return term == self.newest_term and time.monotonic() < self._led_until + LEASE_S / 3

    def _log_leader(self, holder: str) -> None:
        if holder == self._settings.holder:
            log.warning(
                "another process leads as %r: give each controller its own name with CEREBRO_HOLDER",
                holder,
            )
        else:
            log.info("%s leads", holder)


def fence(term: int) -> dict[str, str]:
    """Return headers that fence a write by this term; {} for 0. The store refuses them in a later term."""
    return {api.TERM: str(term)} if term else {}


def resign(server: str, token: str, holder: str, process: str) -> None:
    """End the leadership of this process, so that a standby need not wait for the lease.

    No effect while another process leads. Returns within about a second. Safe in a signal handler: it has its own
    connection and thread, so it waits for no lock of the interrupted code.

    Args:
        server, token: as for `KvsClient`.
        holder, process: as in `Settings`.
    """

    def release_lease() -> None:
        kvs = KvsClient(server, token, retry_for_s=0.0, timeout_s=_LIMIT_S)
        with contextlib.suppress(CerebroError):
            kvs.lead(holder, SOON_S, process=process)

    thread = threading.Thread(target=release_lease, name="resign", daemon=True)
    thread.start()
    thread.join(_LIMIT_S)
