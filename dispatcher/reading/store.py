"""The seam to the key-value store: the few calls the dispatcher makes. `cerebro.runtime.kvs.KvsClient` has them."""

from __future__ import annotations

from typing import Protocol

from cerebro.contract import api
from cerebro.contract.events import ClientEvent, Event, LivePoint
from cerebro.contract.health import HealthAnswer
from cerebro.contract.identity import MadeToken, Principal, TokenRecord, TokenRequest
from cerebro.contract.quotas import Usage
from cerebro.contract.records import (
    AuditEntry,
    CodeRecord,
    ExperimentRecord,
    ExperimentSummary,
    Reclaim,
    SizeRequest,
    Troubles,
    UsageSample,
    WorkerStatus,
)
from cerebro.contract.registry import RegisteredModel
from cerebro.contract.segments import SegmentsAnswer

ENTRIES_PER_READ = 1000
"""Most entries that `events` and `live` return at once; fewer mean that the log is read to its end."""


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
        """Events with seq > `after`, oldest first, at most `ENTRIES_PER_READ`."""

    def segments(self, experiment: str) -> SegmentsAnswer:
        """What of a log is in files, with its times."""

    def snapshot(self, experiment: str, of_format: str) -> bytes | None:
        """The newest fold of a log that is kept; `None`: there is none."""

    def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
        """Live points with seq > `after`, oldest first, at most `ENTRIES_PER_READ`."""

    def append(self, experiment: str, event: ClientEvent, *, is_unread: bool = False, once: str = "") -> int:
        """Append a user's event; `ConflictError` when it comes at the wrong time. `is_unread`: nobody could read the
        log; `once`: of calls with the same one, the first alone counts."""

    def ask_stacks(self, experiment: str, request: api.StacksRequest) -> api.StacksAsked:
        """Ask the worker that runs a task where its process is."""

    def stacks(self, experiment: str, question: str) -> str | None:
        """What it has answered."""

    def restore(self, experiment: str) -> None:
        """Put an experiment back that was quarantined because it could not be read."""

    def queued(self) -> api.QueueAnswer:
        """Open runs of all experiments, oldest first, and how many may be open at once."""

    def workers(self) -> tuple[WorkerStatus, ...]:
        """All registered workers."""

    def usage(self, worker: str) -> tuple[UsageSample, ...]:
        """A worker's use of its machine over the last day."""

    def size_request(self) -> SizeRequest | None:
        """The number of workers that was asked for and is not reached, or was refused, if there is one."""

    def troubles(self) -> Troubles:
        """Why workers that are wanted do not start."""

    def workers_health(self) -> HealthAnswer:
        """What is known of workers' machines."""

    def audit(self) -> tuple[AuditEntry, ...]:
        """What was done to the cluster, oldest first."""

    def whoami(self, *, acts_for: str = "", token: str = "") -> Principal:
        """Who somebody is, where there are users."""

    def tokens(self, *, acts_for: str = "") -> tuple[TokenRecord, ...]:
        """Tokens that one may see."""

    def make_token(self, request: TokenRequest) -> MadeToken:
        """Make a token."""

    def revoke_token(self, token: str) -> None:
        """Revoke one, by its id."""

    def quotas(self) -> tuple[Usage, ...]:
        """Quotas of projects, and what they use."""

    def note_audit(self, what: str) -> None:
        """Put into the audit list what the one whose request this is did."""

    def end_session(self, session: str) -> None:
        """Record that a sign-in session has ended."""

    def has_session_ended(self, session: str) -> bool:
        """Whether it has."""

    def registry(self) -> tuple[RegisteredModel, ...]:
        """Registered models, by name."""

    def reclaim(self) -> Reclaim:
        """Data sets that no experiment needs any more."""

    def code(self, sha256: str) -> CodeRecord:
        """User code by hash; `NotFoundError` if there is none."""

    def put_code(self, code: CodeRecord) -> CodeRecord:
        """Store user code under its hash; twice is harmless."""

    def put_archive(self, sha256: str, content: bytes) -> None:
        """Store an archive under its hash; twice is harmless."""

    def archive(self, sha256: str) -> bytes:
        """An archive's bytes; `NotFoundError` if there is none."""
