"""The audit list: people's actions that no experiment's log records, such as sign-ins, token changes and deletions.

Views, `TokenStore` and the dispatcher (through ``POST /v1/audit``) add entries; `cerebro audit` reads them. The list
holds about the newest 100,000 entries. Each entry is also a line of the service's log, which can be kept longer.
"""

from __future__ import annotations

import logging
from typing import Any

from cerebro.contract.records import AuditEntry
from cerebro.contract.texts import cleaned
from kvs_api.store import keys
from kvs_api.store.database import PAGE, Database, text, translated

_log = logging.getLogger(__name__)

MAX_WHAT = 2000
"""Maximum number of characters of an entry."""
MAX_ENTRIES = 100_000
"""Maximum number of entries; the oldest are dropped."""


class AuditStore(Database):
    """The audit list."""

    def note(self, by: str, what: str) -> None:
        """Add an entry as one line. Escapes unusual characters."""
        what = " ".join(cleaned(what, MAX_WHAT).split())
        with translated():
            seconds, micros = self._redis.time()
            entry: Any = {"t": seconds * 1000 + micros // 1000, "b": by, "w": what}
            self._redis.xadd(keys.AUDIT, entry, maxlen=MAX_ENTRIES, approximate=True)
        _log.info("audit by=%s what=%s", by, what)

    def audit(self, last: int = PAGE) -> tuple[AuditEntry, ...]:
        """Return the newest entries, oldest first."""
        with translated():
            found: Any = self._redis.xrevrange(keys.AUDIT, count=max(1, min(last, MAX_ENTRIES)))
        return tuple(
            AuditEntry(time=int(fields[b"t"]) / 1000, by=text(fields[b"b"]), what=text(fields[b"w"]))
            for _, fields in reversed(found)
        )
