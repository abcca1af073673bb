"""Interface of the store: the calls of the dispatcher. `cerebro.runtime.kvs.client.KvsClient` implements it.

Pages call it through `Reader.call`, which detects outages; `dispatcher.access` calls it directly. `api.gateway` does
not use it: it forwards HTTP requests.
"""

from __future__ import annotations

from typing import Protocol

from cerebro.contract.accounts.identity import MadeToken, Principal, TokenRecord, TokenRequest
from cerebro.contract.accounts.quotas import Usage
from cerebro.contract.events import ClientEvent, Event, LivePoint
from cerebro.contract.records import (
    AuditEntry,
    CodeRecord,
    ExperimentRecord,
    ExperimentSummary,
    Reclaim,
    SizeRequest,
    UsageSample,
    WorkerSetStatus,
    WorkerStatus,
)
from cerebro.contract.rest import api
from cerebro.contract.stored.health import HealthAnswer
from cerebro.contract.stored.notifications import NotificationsAnswer, NotificationTarget, TargetRequest
from cerebro.contract.stored.registry import AliasRequest, ModelVersion, RegisteredModel, Registration
from cerebro.contract.stored.segments import SegmentsAnswer

ENTRIES_PER_READ = 1000
"""Maximum number of entries that `events` and `live` return. Fewer mean the end of the log."""


class Store(Protocol):
    """Calls to the store. Safe for several threads; raises `cerebro.errors`. See `KvsClient` for details."""

    def health(self) -> api.Health:
        """Check that the store answers."""

    def create_experiment(self, record: ExperimentRecord) -> ExperimentRecord:
        """Create an experiment, or return the existing equal one.

        Raises `ConflictError` if one of that name differs.
        """

    def experiment(self, name: str) -> ExperimentRecord:
        """Return an experiment's record. Raises `NotFoundError` for an unknown name."""

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """Return all experiments, newest event first."""

    def events(self, experiment: str, after: int = 0) -> tuple[Event, ...]:
        """Return at most `ENTRIES_PER_READ` events with seq > `after`, oldest first."""

    def segments(self, experiment: str) -> SegmentsAnswer:
        """Return the part of a log that is stored in files."""

    def snapshot(self, experiment: str, of_format: str) -> bytes | None:
        """Return the newest snapshot of a log's fold, written by code of the version `of_format`, or `None`."""

    def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
        """Return at most `ENTRIES_PER_READ` live points with seq > `after`, oldest first."""

    def append(self, experiment: str, event: ClientEvent, *, is_unread: bool = False, once: str = "") -> int:
        """Append a user's event. Raises `ConflictError` if the state does not allow it.

        `is_unread`: True if the log is unreadable; the store then skips the check. `once`: idempotency key.
        """

    def request_stacks(self, experiment: str, request: api.StacksRequest) -> api.StacksRequested:
        """Request the thread stacks of a task's process from its worker."""

    def stacks(self, experiment: str, question: str) -> str | None:
        """Return the stacks that answer the request with id `question`; `None` until the worker answers."""

    def restore(self, experiment: str) -> None:
        """Restore an experiment that was quarantined as unreadable."""

    def queued(self) -> api.QueueAnswer:
        """Return all open runs, oldest first, the attended ones, and the maximum number of attended runs."""

    def workers(self) -> tuple[WorkerStatus, ...]:
        """Return all registered workers."""

    def usage(self, worker: str) -> tuple[UsageSample, ...]:
        """Return a worker's resource use over the last day."""

    def size_request(self) -> SizeRequest | None:
        """Return the pending or refused request for a number of workers."""

    def worker_set_status(self) -> WorkerSetStatus:
        """Return why workers fail to start."""

    def workers_health(self) -> HealthAnswer:
        """Return checks, quarantine and incidents of all machines."""

    def audit(self) -> tuple[AuditEntry, ...]:
        """Return the newest 1,000 entries of the audit log, oldest first."""

    def whoami(self, *, acts_for: str = "", token: str = "") -> Principal:
        """Return the user of `token`, or the user that the dispatcher acts for."""

    def tokens(self, *, acts_for: str = "") -> tuple[TokenRecord, ...]:
        """Return the user's tokens; for an admin, all."""

    def make_token(self, request: TokenRequest) -> MadeToken:
        """Create a token."""

    def revoke_token(self, token: str) -> None:
        """Revoke a token by id."""

    def quotas(self) -> tuple[Usage, ...]:
        """Return quotas and use of projects and users."""

    def note_audit(self, what: str) -> None:
        """Add an entry of the current user to the audit log."""

    def redeem_sign_in_code(self, code: str, *, is_preview: bool = False) -> api.SignedIn:
        """Redeem a one-time code, unless for a preview; return its owner.

        Raises `NotFoundError`, or `ConflictError` if it was used.
        """

    def end_session(self, session: str) -> None:
        """Record the end of a sign-in session."""

    def has_session_ended(self, session: str) -> bool:
        """True if a sign-in session has ended."""

    def registry(self) -> tuple[RegisteredModel, ...]:
        """Return registered models, sorted by name."""

    def registered_model(self, name: str) -> RegisteredModel:
        """Return a registered model. Raises `NotFoundError` for an unknown name."""

    def register_model(self, name: str, registration: Registration, *, once: str = "") -> ModelVersion:
        """Add a version, whose files the controller copies. Calls with equal `once` add one version."""

    def move_alias(self, name: str, request: AliasRequest) -> RegisteredModel:
        """Move or remove an alias. Raises `ConflictError` if the version is not ready."""

    def notifications(self, *, acts_for: str = "") -> NotificationsAnswer:
        """Return the notification targets that the user may see."""

    def add_notification(self, request: TargetRequest) -> NotificationTarget:
        """Add a notification target. Raises `ForbiddenError`, or `ConflictError` for too many."""

    def remove_notification(self, target: str) -> None:
        """Remove a notification target. Raises `NotFoundError` or `ForbiddenError`."""

    def test_notification(self, target: str) -> NotificationTarget:
        """Request a test message. Raises `NotFoundError`."""

    def reclaim(self) -> Reclaim:
        """Return data sets that no experiment uses."""

    def code(self, sha256: str) -> CodeRecord:
        """Return user code by hash. Raises `NotFoundError`."""

    def put_code(self, code: CodeRecord) -> CodeRecord:
        """Store user code under its hash. Idempotent."""

    def put_archive(self, sha256: str, content: bytes) -> None:
        """Store an archive under its hash. Idempotent."""

    def archive(self, sha256: str) -> bytes:
        """Return an archive's bytes. Raises `NotFoundError`."""
