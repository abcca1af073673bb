"""Types that services exchange and store: events, records, tasks, requests and answers, shared by client and server.

Nothing here does I/O. Every model is frozen, refuses unknown fields and has one schema version of the store.
The meaning of a log is computed in `cerebro.state`; calls over HTTP are in `cerebro.runtime.kvs`.
"""

from typing import Final

SCHEMA_VERSION: Final = 2
"""Version of every record in the store; a client refuses a server with another version."""
