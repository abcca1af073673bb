"""What services say to each other: records, tasks and events, typed once and shared by client and server.

Nothing here does I/O. Every model is frozen, refuses unknown fields and carries the schema version of the store.
"""

from typing import Final

SCHEMA_VERSION: Final = 2
"""Version of every record in the store; a client and a server that differ refuse each other by name."""
