"""The client of kvs_api: the only way any other part of Cerebro reads or changes shared state.

Controller, workers, dispatcher, CLI and notebook client create a `KvsClient`; through a dispatcher, it has the rights
of a user. Each method is one typed request. The client caches nothing and decides nothing.

Every call is safe to repeat (steps are compare-and-set, appends carry their own identity), so it is sent again while
the store is away (`cerebro.runtime.kvs.transport`).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from cerebro import errors
from cerebro.contract import SCHEMA_VERSION
from cerebro.contract.events import ClientEvent, ClusterEvent, Event, LivePoint
from cerebro.contract.records import (
    AuditEntry,
    CodeRecord,
    ExperimentRecord,
    ExperimentSummary,
    Reclaim,
    SizeRequest,
    Unreadable,
    UsageSample,
    WorkerRecord,
    WorkerSetStatus,
    WorkerStatus,
)
from cerebro.contract.rest import api
from cerebro.contract.stored.registry import (
    AliasRequest,
    ModelVersion,
    RegisteredModel,
    Registration,
    RegistryAnswer,
    VersionOutcome,
)
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.contract.trials import TrialRecord
from cerebro.runtime.kvs.account_calls import AccountCalls
from cerebro.runtime.kvs.history_calls import HistoryCalls
from cerebro.runtime.kvs.log_answers import readable, readable_cluster_log
from cerebro.runtime.kvs.machine_calls import MachineCalls
from cerebro.runtime.kvs.notification_calls import NotificationCalls
from cerebro.runtime.kvs.segment_calls import SegmentCalls


class _AnyHealth(BaseModel):
    """Health answer of kvs_api or of a dispatcher; only a dispatcher names an `api`."""

    status: str
    api: str = ""


class KvsClient(AccountCalls, HistoryCalls, MachineCalls, NotificationCalls, SegmentCalls):
    """Typed calls to kvs_api, or to a dispatcher that forwards them. See `Transport` for the arguments."""

    # --- health and leadership -------------------------------------------------------------------

    def health(self) -> api.Health:
        """Return the service's state. This call needs no token.

        Raises:
            ConflictError: the service speaks another schema version.
        """
        health = self.call("GET", "/health", api.Health)
        if health.schema_version != SCHEMA_VERSION:
            raise errors.ConflictError(
                f"kvs_api at {self.address} speaks schema {health.schema_version}, this program {SCHEMA_VERSION}: "
                "run the same version of Cerebro on both sides"
            )
        return health

    def api_prefix(self) -> str:
        """Return the path of the store's API below this address: "" for kvs_api, a prefix for a dispatcher.

        Raises:
            ClusterError: the server is not Cerebro.
        """
        try:
            answer = _AnyHealth.model_validate_json(
                self.send("GET", "/health", None, 0.0, accepts_pages=True)
            )
        except (ValueError, errors.BadRequestError, errors.NotFoundError) as cause:
            raise errors.ClusterError(
                f"{self.address} answers, but is no Cerebro: give the address of a dispatcher or a kvs_api, "
                f"with the scheme (http or https) that it has ({str(cause)[:200]})"
            ) from cause
        return answer.api

    def lead(
        self,
        holder: str,
        ttl_s: float,
        *,
        process: str = "",
        is_start: bool = False,
        open_runs: int = 1,
        attended: api.Attended | None = None,
    ) -> api.LeaderAnswer:
        """Acquire or renew the controller's leadership for `ttl_s` seconds.

        Args:
            process: id of the calling process. Each term has exactly one process.
            is_start: True if the process has not led yet: it takes over at once from an earlier process of `holder`.
            open_runs: maximum number of attended runs.
            attended: attended runs; `None`: unchanged.
        """
        request = api.LeaderRequest(
            holder=holder,
            process=process,
            is_start=is_start,
            ttl_s=ttl_s,
            open_runs=open_runs,
            attended=attended,
        )
        return self.call("POST", "/v1/leader", api.LeaderAnswer, request)

    # --- experiments -----------------------------------------------------------------------------

    def create_experiment(self, record: ExperimentRecord) -> ExperimentRecord:
        """Create an experiment, or return the existing equal one.

        Raises:
            ConflictError: an experiment of that name with other locators or code exists.
        """
        return self.call("PUT", f"/v1/experiments/{_quoted(record.name)}", ExperimentRecord, record)

    def experiment(self, name: str) -> ExperimentRecord:
        """Return an experiment's record; `NotFoundError` if it does not exist."""
        return self.call("GET", f"/v1/experiments/{_quoted(name)}", ExperimentRecord)

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """Return all experiments, newest event first."""
        return self.call("GET", "/v1/experiments", api.ExperimentsAnswer).experiments

    def append(self, experiment: str, event: ClientEvent, *, is_unread: bool = False, once: str = "") -> int:
        """Append a client's event exactly once, despite retries, and return its seq.

        The same `RunRequested` from another call, and a second `DeletionRequested`, return the first one's seq.

        Args:
            is_unread: True if the log cannot be read. A deletion then removes its waiting runs from the queue.
            once: at most 64 characters. Another call with the same text appends nothing and returns the first seq. By
                default each call counts.

        Raises:
            NotFoundError: the experiment, or the run in it, does not exist.
            ConflictError: the run id is taken, a run to delete is open, or the experiment is being deleted.
        """
        path = f"/v1/experiments/{_quoted(experiment)}/events{'?unread=1' if is_unread else ''}"
        identity = {api.ONCE: once or uuid.uuid4().hex}
        content = self.send("POST", path, event.model_dump_json().encode(), 0.0, identity)
        return self.answered(api.AppendAnswer, "POST", path, content).seq

    def events(self, experiment: str, after: int = 0, *, wait_s: float = 0.0) -> tuple[Event, ...]:
        """Return at most 1,000 events with seq > `after`, oldest first. Wait up to `wait_s` seconds for one.

        Raises:
            UnreadableError: an event cannot be read; contains the events before it.
                `UnreadableClusterLogError` for an event of the cluster log.
        """
        path = f"/v1/experiments/{_quoted(experiment)}/events?after={after}"
        content = self.send("GET", f"{path}&wait_s={wait_s}", None, wait_s)
        try:
            return api.EventsAnswer.model_validate_json(content).events
        except ValidationError:
            return readable(experiment, self.send("GET", f"{path}&check=1", None, 0.0))

    def live(self, experiment: str, after: int = 0, *, wait_s: float = 0.0) -> tuple[LivePoint, ...]:
        """Return at most 1,000 live points with seq > `after`, oldest first."""
        path = f"/v1/experiments/{_quoted(experiment)}/live?after={after}&wait_s={wait_s}"
        return self.call("GET", path, api.LiveAnswer, wait_s=wait_s).points

    # --- controller ------------------------------------------------------------------------------

    def watch(self, cursors: dict[str, int], cluster: int, wait_s: float) -> api.WatchAnswer:
        """Return new events of the named logs; wait up to `wait_s` seconds for any log or the cluster.

        Raises:
            UnreadableError: as `events`, of any of the logs.
        """
        body = api.WatchRequest(cursors=cursors, cluster=cluster, wait_s=wait_s)
        content = self.send("POST", "/v1/watch", body.model_dump_json().encode(), wait_s)
        try:
            return api.WatchAnswer.model_validate_json(content)
        except ValidationError:
            news = {name: events for name, cursor in cursors.items() if (events := self.events(name, cursor))}
            return api.WatchAnswer(events=news, cluster=cluster)

    def decide(self, experiment: str, request: api.DecideRequest) -> api.DecideAnswer:
        """Apply the controller's steps atomically.

        Raises:
            ConflictError: another controller leads now.
            UnreadableError: an event after the cursor cannot be read. The steps were applied nevertheless.
        """
        path = f"/v1/experiments/{_quoted(experiment)}/decisions"
        content = self.send("POST", path, request.model_dump_json().encode(), 0.0)
        try:
            return api.DecideAnswer.model_validate_json(content)
        except ValidationError:
            cursor = request.after
            while events := self.events(experiment, cursor):
                cursor = events[-1].seq
            # The events are valid, so the outcomes are not, or another program has answered.
            return self.answered(api.DecideAnswer, "POST", path, content)

    def cluster_log(self, after: int = 0, *, wait_s: float = 0.0) -> tuple[ClusterEvent, ...]:
        """Return at most 1,000 events of the cluster log with seq > `after`, oldest first.

        Raises:
            UnreadableClusterLogError: an event cannot be read.
        """
        path = f"/v1/cluster/log?after={after}&wait_s={wait_s}"
        return readable_cluster_log(self.send("GET", path, None, wait_s)).events

    def write_cluster_log(self, request: api.ClusterLogRequest) -> api.ClusterLogAnswer:
        """Append the controller's events to the cluster log, unless it has events after the request's cursor.

        Raises:
            ConflictError: another controller leads now.
            UnreadableClusterLogError: an event after the cursor cannot be read.
        """
        return readable_cluster_log(
            self.send("POST", "/v1/cluster/log", request.model_dump_json().encode(), 0.0)
        )

    def quarantine(self, experiment: str, problem: Unreadable, term: int) -> None:
        """Quarantine an unreadable experiment: its runs leave the queue, and clients get the reason.

        Its log stays unchanged. Repeating it is safe; the first reason stays.

        Args:
            term: the controller's leadership.

        Raises:
            NotFoundError: the experiment is gone.
            ConflictError: another controller leads now.
        """
        body = api.QuarantineRequest(term=term, problem=problem).model_dump_json().encode()
        self.send("PUT", f"/v1/experiments/{_quoted(experiment)}/quarantine", body, 0.0)

    def restore(self, experiment: str) -> None:
        """Release an experiment from quarantine: its runs return to the queue, and its log is read again.

        If the log is still unreadable, the experiment is soon quarantined again.

        Raises:
            NotFoundError: the experiment does not exist.
            ConflictError: it was not quarantined.
        """
        self.send("DELETE", f"/v1/experiments/{_quoted(experiment)}/quarantine", None, 0.0)

    def queue(self) -> tuple[api.QueueEntry, ...]:
        """Return the open runs of all experiments, oldest first."""
        return self.call("GET", "/v1/queue", api.QueueAnswer).runs

    def queued(self) -> api.QueueAnswer:
        """Return the queue, with the attended runs and their maximum number."""
        return self.call("GET", "/v1/queue", api.QueueAnswer)

    def deleting(self) -> tuple[str, ...]:
        """Return experiments with a requested deletion."""
        return self.call("GET", "/v1/queue", api.QueueAnswer).deleting

    def delete_experiment(self, name: str, term: int) -> None:
        """Remove an experiment's records after its files are removed. Leaves an entry in `audit`.

        Args:
            term: the controller's leadership.

        Raises:
            NotFoundError: it is already gone.
            ConflictError: its deletion was not requested, or another controller leads now.
        """
        self.send("DELETE", f"/v1/experiments/{_quoted(name)}?term={term}", None, 0.0)

    def reclaim(self) -> Reclaim:
        """Return the data sets that no experiment uses any more."""
        return self.call("GET", "/v1/reclaim", Reclaim)

    def audit(self, last: int = 1000) -> tuple[AuditEntry, ...]:
        """Return the newest audit entries, oldest first: actions that no experiment's log records."""
        return self.call("GET", f"/v1/audit?last={last}", api.AuditAnswer).entries

    # --- workers ---------------------------------------------------------------------------------

    def register(self, record: WorkerRecord) -> WorkerRecord:
        """Register a worker's new incarnation; empties its inbox and fences the previous incarnation."""
        return self.call("PUT", f"/v1/workers/{_quoted(record.worker)}", WorkerRecord, record)

    def workers(self) -> tuple[WorkerStatus, ...]:
        """Return all registered workers."""
        return self.call("GET", "/v1/workers", api.WorkersAnswer).workers

    def remove_worker(self, worker: str, incarnation: str | None = None) -> None:
        """Remove a worker that is gone for good. Replicas only on its volume are made again when needed.

        Args:
            incarnation: expected incarnation; by default any.

        Raises:
            NotFoundError: no worker of this name is registered.
            ConflictError: another incarnation is registered.
        """
        query = f"?incarnation={_quoted(incarnation)}" if incarnation else ""
        self.send("DELETE", f"/v1/workers/{_quoted(worker)}{query}", None, 0.0)

    def report(self, worker: str, request: api.ReportRequest) -> api.ReportAnswer:
        """Send steps, live points and a heartbeat."""
        return self.call("POST", f"/v1/workers/{_quoted(worker)}/reports", api.ReportAnswer, request)

    def usage(self, worker: str) -> tuple[UsageSample, ...]:
        """Return a worker's usage over the last day, oldest first; `NotFoundError` if it does not exist."""
        return self.call("GET", f"/v1/workers/{_quoted(worker)}/usage", api.UsageAnswer).samples

    def inbox(self, worker: str, incarnation: str, after: int, *, wait_s: float) -> tuple[InboxItem, ...]:
        """Return this incarnation's inbox entries with seq > `after`; wait up to `wait_s` seconds for one."""
        path = f"/v1/workers/{_quoted(worker)}/inbox?incarnation={_quoted(incarnation)}&after={after}&wait_s={wait_s}"
        return self.call("GET", path, api.InboxAnswer, wait_s=wait_s).items

    # --- stacks of a running task ----------------------------------------------------------------

    def request_stacks(self, experiment: str, request: api.StacksRequest) -> api.StacksRequested:
        """Request the stacks of a running task from its worker. Return the attempt.

        Raises:
            NotFoundError: no attempt at the task was ever assigned.
            ConflictError: no attempt at the task runs now.
        """
        return self.call(
            "POST", f"/v1/experiments/{_quoted(experiment)}/stacks", api.StacksRequested, request
        )

    def stacks(self, experiment: str, question: str) -> str | None:
        """Return the worker's answer; `None` while it is pending."""
        path = f"/v1/experiments/{_quoted(experiment)}/stacks?question={_quoted(question)}"
        return self.call("GET", path, api.StacksAnswer).text

    def report_stacks(self, worker: str, report: api.StacksReport) -> None:
        """Answer a request for stacks. Worker only."""
        self.send("POST", f"/v1/workers/{_quoted(worker)}/stacks", report.model_dump_json().encode(), 0.0)

    # --- the cluster's size ----------------------------------------------------------------------

    def size_request(self) -> SizeRequest | None:
        """Return the pending or refused request for a number of workers, or `None`."""
        return self.call("GET", "/v1/cluster/size", api.SizeAnswer).request

    def request_size(self, request: SizeRequest) -> None:
        """Replace the size request; or, with a `problem`, refuse exactly this request.

        Raises:
            ConflictError: the refused request was replaced.
        """
        self.call("PUT", "/v1/cluster/size", SizeRequest, request)

    def withdraw_size_request(self, workers: int) -> None:
        """Withdraw the request for this number of workers; `ConflictError` if it is not the current one."""
        self.send("DELETE", f"/v1/cluster/size?workers={workers}", None, 0.0)

    def worker_set_status(self) -> WorkerSetStatus:
        """Return the reasons why requested workers do not start."""
        return self.call("GET", "/v1/cluster/worker-set", WorkerSetStatus)

    def set_worker_set_status(self, status: WorkerSetStatus) -> None:
        """Replace the record of workers that do not start. Controller only."""
        self.call("PUT", "/v1/cluster/worker-set", WorkerSetStatus, status)

    # --- trials ----------------------------------------------------------------------------------

    def trials(self, keys: Sequence[str]) -> tuple[TrialRecord, ...]:
        """Return the kept outcomes of earlier trials with these cache keys."""
        return self.call("POST", "/v1/trials", api.TrialsAnswer, api.TrialsRequest(keys=tuple(keys))).records

    def keep_trial(self, record: TrialRecord) -> None:
        """Keep the outcome of a trial for 90 days; it replaces an earlier one with the same key."""
        self.call("PUT", "/v1/trials", TrialRecord, record)

    def forget_trials(self, keys: Sequence[str]) -> int:
        """Remove trial outcomes and return their number."""
        request = api.TrialsRequest(keys=tuple(keys))
        return self.call("POST", "/v1/trials/forget", api.ForgottenAnswer, request).forgotten

    # --- registered models -----------------------------------------------------------------------

    def registry(self, *, copying: bool = False) -> tuple[RegisteredModel, ...]:
        """Return all registered models, by name.

        Args:
            copying: True for only the versions with files to copy, each in a separate model.
        """
        path = "/v1/registry?copying=1" if copying else "/v1/registry"
        return self.call("GET", path, RegistryAnswer).models

    def registered_model(self, name: str) -> RegisteredModel:
        """Return a registered model; `NotFoundError` if it does not exist."""
        return self.call("GET", f"/v1/registry/{_quoted(name)}", RegisteredModel)

    def register_model(self, name: str, registration: Registration, *, once: str = "") -> ModelVersion:
        """Request a new version exactly once, despite retries. Its files are copied in the background.

        Args:
            once: idempotency key; default: a new one.

        Raises:
            NotFoundError: the experiment does not exist.
        """
        identity = {api.ONCE: once or uuid.uuid4().hex}
        path = f"/v1/registry/{_quoted(name)}"
        content = self.send("POST", path, registration.model_dump_json().encode(), 0.0, identity)
        return self.answered(ModelVersion, "POST", path, content)

    def settle_version(self, name: str, outcome: VersionOutcome) -> ModelVersion:
        """Report the outcome of copying a version's files. Controller only."""
        return self.call("PUT", f"/v1/registry/{_quoted(name)}", ModelVersion, outcome)

    def move_alias(self, name: str, request: AliasRequest) -> RegisteredModel:
        """Move an alias to another version, or remove it.

        Raises:
            NotFoundError: the model, version or alias does not exist.
            ConflictError: the version is not ready.
        """
        return self.call("POST", f"/v1/registry/{_quoted(name)}/aliases", RegisteredModel, request)

    # --- code ------------------------------------------------------------------------------------

    def put_code(self, record: CodeRecord) -> CodeRecord:
        """Store encoded user code under its hash; storing it twice is harmless."""
        return self.call("PUT", f"/v1/code/{_quoted(record.sha256)}", CodeRecord, record)

    def code(self, sha256: str) -> CodeRecord:
        """Return encoded user code; `NotFoundError` if it does not exist."""
        return self.call("GET", f"/v1/code/{_quoted(sha256)}", CodeRecord)

    def put_archive(self, sha256: str, content: bytes) -> None:
        """Store a code archive's bytes under their hash; storing them twice is harmless."""
        kind = {"Content-Type": "application/octet-stream"}
        self.send("PUT", f"/v1/archives/{_quoted(sha256)}", content, 0.0, kind)

    def archive(self, sha256: str) -> bytes:
        """Return a code archive's bytes; `NotFoundError` if it does not exist."""
        return self.send("GET", f"/v1/archives/{_quoted(sha256)}", None, 0.0)


def _quoted(text: str) -> str:
    """Quote a name for a URL. The server refuses invalid names."""
    return quote(text, safe="")
