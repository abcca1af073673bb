"""The seam to the key-value store: the few calls the dispatcher makes. `cerebro.kvs.KvsClient` has them."""

from __future__ import annotations

from typing import Protocol

from cerebro.contract import api
from cerebro.contract.events import Event
from cerebro.contract.records import ExperimentRecord, ExperimentSummary, WorkerStatus

EVENTS_PER_READ = 1000
"""Most events that `events` returns at once; fewer mean that the log is read to its end."""


class Store(Protocol):
    """Calls are safe from several threads and raise `cerebro.errors`; see `KvsClient` for each."""

    def health(self) -> api.Health:
        """Whether the store answers."""

    def create_experiment(self, record: ExperimentRecord) -> ExperimentRecord:
        """Create; `ConflictError` when the name holds another one."""

    def experiment(self, name: str) -> ExperimentRecord:
        """One record; `NotFoundError` if there is none."""

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """All, newest event first."""

    def events(self, experiment: str, after: int = 0) -> tuple[Event, ...]:
        """Events with seq > `after`, oldest first, at most `EVENTS_PER_READ`."""

    def workers(self) -> tuple[WorkerStatus, ...]:
        """All registered workers."""

    def put_archive(self, sha256: str, content: bytes) -> None:
        """Store an archive under its hash; twice is harmless."""

    def archive(self, sha256: str) -> bytes:
        """An archive's bytes; `NotFoundError` if there is none."""
