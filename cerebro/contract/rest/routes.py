"""Table of kvs_api's routes (`STORE`): path, scope, and the types of requests and answers.

`kvs_api.api.app` routes by it, and the view's method in `kvs_api.api.views.Views` has the operation's name. The OpenAPI
document and the dispatcher, which forwards some routes, use the same table. `KvsClient` names the paths itself.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from cerebro.contract.accounts.identity import MadeToken, Principal, Scope, TokenRequest
from cerebro.contract.accounts.quotas import Quota
from cerebro.contract.events import ClientEvent
from cerebro.contract.records import (
    CodeRecord,
    ExperimentRecord,
    Reclaim,
    SizeRequest,
    WorkerRecord,
    WorkerSetStatus,
)
from cerebro.contract.rest import api
from cerebro.contract.rest.openapi import BYTES, Operation
from cerebro.contract.stored import health
from cerebro.contract.stored.history import History, HistoryAnswer, HistoryRequest
from cerebro.contract.stored.notifications import (
    NotificationsAnswer,
    NotificationTarget,
    Outbox,
    OutboxAnswer,
    TargetRequest,
)
from cerebro.contract.stored.registry import (
    AliasRequest,
    ModelVersion,
    RegisteredModel,
    Registration,
    RegistryAnswer,
    VersionOutcome,
)
from cerebro.contract.stored.segments import SegmentAnswer, SegmentRequest, SegmentsAnswer, Snapshot
from cerebro.contract.trials import TrialRecord


class _Cursor(BaseModel):
    after: api.Cursor = 0
    wait_s: float = Field(0.0, ge=0, le=api.MAX_WAIT_S)


class _Events(_Cursor):
    check: int = 0


class _Inbox(_Cursor):
    incarnation: str = ""


class _Term(BaseModel):
    term: api.Cursor


class _Append(BaseModel):
    unread: int = 0


class _Incarnation(BaseModel):
    incarnation: str | None = None


class _Question(BaseModel):
    question: api.Question


class _Copying(BaseModel):
    copying: int = 0
    """1: only versions with files to copy."""


class _Last(BaseModel):
    last: int = Field(1000, ge=1, le=api.MAX_SEQ)
    """Maximum number of entries, the newest ones."""


class _Format(BaseModel):
    format: str = Field(min_length=1, max_length=64)


class _NewSnapshot(_Format, _Term):
    seq: api.Cursor
    created: float = 0.0


class _Size(BaseModel):
    workers: api.Cursor


STORE: dict[str, Operation] = {
    "GET /health": Operation(
        name="health",
        scope=Scope.OPEN,
        is_open=True,
        summary="State of the service; needs no token.",
        answer=api.Health,
        answers={503: api.Health},
    ),
    "GET /live": Operation(
        name="live",
        scope=Scope.OPEN,
        is_open=True,
        summary="Whether the process answers, independently of Redis; needs no token.",
    ),
    "GET /openapi.json": Operation(
        name="openapi", scope=Scope.READ, summary="This document.", answer=dict[str, Any]
    ),
    "POST /v1/leader": Operation(
        name="lead",
        scope=Scope.CONTROL,
        summary="For the controller: take or renew the leadership.",
        body=api.LeaderRequest,
        answer=api.LeaderAnswer,
    ),
    "GET /v1/experiments": Operation(
        name="experiments",
        scope=Scope.READ,
        summary="All experiments, newest event first.",
        answer=api.ExperimentsAnswer,
    ),
    "PUT /v1/experiments/{name}": Operation(
        name="create_experiment",
        scope=Scope.CREATE,
        summary="Create an experiment, or return the existing one with the same content.",
        body=ExperimentRecord,
        answer=ExperimentRecord,
        statuses=(200, 409),
    ),
    "GET /v1/experiments/{name}": Operation(
        name="experiment",
        scope=Scope.READ,
        summary="One experiment.",
        answer=ExperimentRecord,
        statuses=(200, 404),
    ),
    "DELETE /v1/experiments/{name}": Operation(
        name="delete_experiment",
        scope=Scope.CONTROL,
        summary="For the controller: remove an experiment after a user's request, once its files are removed.",
        query=_Term,
        statuses=(204, 404, 409),
    ),
    "POST /v1/experiments/{name}/events": Operation(
        name="append",
        scope=Scope.STEER,
        summary="Append a client's event; calls with the same idempotency key append one.",
        body=ClientEvent,
        answer=api.AppendAnswer,
        query=_Append,
        headers=(api.ONCE,),
        statuses=(200, 404, 409),
    ),
    "GET /v1/experiments/{name}/events": Operation(
        name="events",
        scope=Scope.READ,
        summary="The event log after a cursor.",
        answer=api.EventsAnswer,
        query=_Events,
        statuses=(200, 404, 409),
    ),
    "GET /v1/experiments/{name}/segments": Operation(
        name="segments",
        scope=Scope.READ,
        summary="The files that hold the older part of a log.",
        answer=SegmentsAnswer,
        statuses=(200, 404),
    ),
    "POST /v1/experiments/{name}/segments": Operation(
        name="cut",
        scope=Scope.CONTROL,
        summary="For the controller: move the older part of a log into a file.",
        body=SegmentRequest,
        answer=SegmentAnswer,
        statuses=(200, 404, 409),
    ),
    "GET /v1/experiments/{name}/snapshot": Operation(
        name="snapshot",
        scope=Scope.READ,
        summary="The newest snapshot of a log in a format (bytes).",
        answer=bytes,
        answer_kind=BYTES,
        query=_Format,
        statuses=(200, 404),
    ),
    "PUT /v1/experiments/{name}/snapshot": Operation(
        name="keep_snapshot",
        scope=Scope.CONTROL,
        summary="For the controller: store a snapshot of a log (bytes).",
        body=bytes,
        body_kind=BYTES,
        answer=Snapshot,
        query=_NewSnapshot,
        statuses=(200, 404, 409),
    ),
    "PUT /v1/experiments/{name}/quarantine": Operation(
        name="quarantine",
        scope=Scope.CONTROL,
        summary="For the controller: quarantine an unreadable experiment, so that others continue.",
        body=api.QuarantineRequest,
        statuses=(204, 404, 409),
    ),
    "DELETE /v1/experiments/{name}/quarantine": Operation(
        name="restore",
        scope=Scope.ADMINISTER,
        summary="Release an experiment from quarantine; its log is read again.",
        statuses=(204, 404, 409),
    ),
    "GET /v1/experiments/{name}/live": Operation(
        name="points",
        scope=Scope.READ,
        summary="Live points after a cursor.",
        answer=api.LiveAnswer,
        query=_Cursor,
        statuses=(200, 404),
    ),
    "POST /v1/experiments/{name}/stacks": Operation(
        name="request_stacks",
        scope=Scope.STEER,
        summary="Request the stack trace of a running task from its worker.",
        body=api.StacksRequest,
        answer=api.StacksRequested,
        statuses=(200, 404, 409),
    ),
    "GET /v1/experiments/{name}/stacks": Operation(
        name="stacks",
        scope=Scope.READ,
        summary="The worker's answer to a stack trace request; kept for five minutes.",
        answer=api.StacksAnswer,
        query=_Question,
        statuses=(200, 404),
    ),
    "POST /v1/experiments/{name}/decisions": Operation(
        name="decide",
        scope=Scope.CONTROL,
        summary="For the controller: apply its steps and return the log after its cursor.",
        body=api.DecideRequest,
        answer=api.DecideAnswer,
        statuses=(200, 404, 409),
    ),
    "POST /v1/watch": Operation(
        name="watch",
        scope=Scope.READ,
        summary="Wait for news in several logs or the cluster.",
        body=api.WatchRequest,
        answer=api.WatchAnswer,
        statuses=(200, 409),
    ),
    "GET /v1/cluster/log": Operation(
        name="cluster_log",
        scope=Scope.READ,
        summary="The cluster log after a cursor: workers and their replicas.",
        answer=api.ClusterLogAnswer,
        query=_Cursor,
    ),
    "POST /v1/cluster/log": Operation(
        name="write_cluster_log",
        scope=Scope.CONTROL,
        summary="For the controller: append to the cluster log, if no event follows its cursor.",
        body=api.ClusterLogRequest,
        answer=api.ClusterLogAnswer,
        statuses=(200, 409),
    ),
    "GET /v1/cluster/log/segments": Operation(
        name="cluster_log_segments",
        scope=Scope.READ,
        summary="The files that hold the older part of the cluster log.",
        answer=SegmentsAnswer,
    ),
    "POST /v1/cluster/log/segments": Operation(
        name="cut_cluster_log",
        scope=Scope.CONTROL,
        summary="For the controller: move the older part of the cluster log into a file.",
        body=SegmentRequest,
        answer=SegmentAnswer,
        statuses=(200, 409),
    ),
    "GET /v1/cluster/log/snapshot": Operation(
        name="cluster_log_snapshot",
        scope=Scope.READ,
        summary="The newest snapshot of the cluster log in a format (bytes).",
        answer=bytes,
        answer_kind=BYTES,
        query=_Format,
        statuses=(200, 404),
    ),
    "PUT /v1/cluster/log/snapshot": Operation(
        name="keep_cluster_log_snapshot",
        scope=Scope.CONTROL,
        summary="For the controller: store a snapshot of the cluster log (bytes).",
        body=bytes,
        body_kind=BYTES,
        answer=Snapshot,
        query=_NewSnapshot,
        statuses=(200, 409),
    ),
    "GET /v1/queue": Operation(
        name="queue",
        scope=Scope.READ,
        summary="Open runs, oldest first, and experiments to delete.",
        answer=api.QueueAnswer,
        statuses=(200, 409),
    ),
    "GET /v1/audit": Operation(
        name="audit",
        scope=Scope.READ,
        summary="The newest entries of the audit list, oldest first.",
        answer=api.AuditAnswer,
        query=_Last,
    ),
    "POST /v1/audit": Operation(
        name="note_audit",
        scope=Scope.ACT,
        summary="For the dispatcher: add a user's action to the audit list, such as a sign-in or a download.",
        body=api.AuditRequest,
        statuses=(204,),
    ),
    "POST /v1/sign-in-codes": Operation(
        name="make_sign_in_code",
        scope=Scope.READ,
        summary="Make a one-time code that signs a browser in with the caller's rights. For people.",
        body=api.SignInCodeRequest,
        answer=api.SignInCode,
        statuses=(200, 403),
    ),
    "POST /v1/sign-in-codes/redeem": Operation(
        name="redeem_sign_in_code",
        scope=Scope.ACT,
        summary="For the dispatcher: return the owner of a one-time code, and use the code up.",
        body=api.RedeemRequest,
        answer=api.SignedIn,
        headers=(api.ONCE,),
        statuses=(200, 404, 409),
    ),
    "GET /v1/sessions/{name}": Operation(
        name="session",
        scope=Scope.ACT,
        summary="For the dispatcher: whether a sign-in session has ended.",
        answer=api.SessionAnswer,
    ),
    "DELETE /v1/sessions/{name}": Operation(
        name="end_session",
        scope=Scope.ACT,
        summary="For the dispatcher: end a sign-in session.",
        statuses=(204,),
    ),
    "GET /v1/reclaim": Operation(
        name="reclaim",
        scope=Scope.FETCH,
        summary="Data sets that no experiment uses.",
        answer=Reclaim,
    ),
    "GET /v1/workers": Operation(
        name="workers", scope=Scope.READ, summary="All workers.", answer=api.WorkersAnswer
    ),
    "PUT /v1/workers/{name}": Operation(
        name="register",
        scope=Scope.WORK,
        summary="Register a worker's new incarnation.",
        body=WorkerRecord,
        answer=WorkerRecord,
    ),
    "DELETE /v1/workers/{name}": Operation(
        name="remove_worker",
        scope=Scope.CLUSTER,
        summary="Remove a worker permanently.",
        query=_Incarnation,
        statuses=(204, 404, 409),
    ),
    "GET /v1/cluster/size": Operation(
        name="size_request",
        scope=Scope.READ,
        summary="The pending request for a number of workers.",
        answer=api.SizeAnswer,
    ),
    "PUT /v1/cluster/size": Operation(
        name="request_size",
        scope=Scope.CLUSTER,
        summary="Request a number of workers, or refuse the pending request with a problem.",
        body=SizeRequest,
        answer=SizeRequest,
        statuses=(200, 409),
    ),
    "DELETE /v1/cluster/size": Operation(
        name="withdraw_size_request",
        scope=Scope.CLUSTER,
        summary="Withdraw the pending request for a number of workers.",
        query=_Size,
        statuses=(204, 409),
    ),
    "GET /v1/cluster/worker-set": Operation(
        name="worker_set_status",
        scope=Scope.READ,
        summary="Why workers do not start.",
        answer=WorkerSetStatus,
    ),
    "PUT /v1/cluster/worker-set": Operation(
        name="set_worker_set_status",
        scope=Scope.CONTROL,
        summary="For the controller: replace the reasons why workers do not start.",
        body=WorkerSetStatus,
        answer=WorkerSetStatus,
    ),
    "GET /v1/workers/{name}/usage": Operation(
        name="usage",
        scope=Scope.READ,
        summary="A worker's usage over the last day.",
        answer=api.UsageAnswer,
        statuses=(200, 404),
    ),
    "POST /v1/workers/{name}/reports": Operation(
        name="report",
        scope=Scope.WORK,
        summary="For workers: apply steps, store live points, and renew leases.",
        body=api.ReportRequest,
        answer=api.ReportAnswer,
    ),
    "POST /v1/workers/{name}/stacks": Operation(
        name="report_stacks",
        scope=Scope.WORK,
        summary="For workers: answer a stack trace request.",
        body=api.StacksReport,
        statuses=(204,),
    ),
    "GET /v1/cluster/health": Operation(
        name="workers_health",
        scope=Scope.READ,
        summary="Health of workers' machines: checks, quarantine, incidents.",
        answer=health.HealthAnswer,
    ),
    "POST /v1/cluster/health": Operation(
        name="report_incident",
        scope=Scope.CONTROL,
        summary="For the controller: record an incident of a worker's machine.",
        body=health.IncidentRequest,
        statuses=(204, 409),
    ),
    "PUT /v1/workers/{name}/quarantine": Operation(
        name="quarantine_worker",
        scope=Scope.CLUSTER,
        summary="Quarantine a worker: it gets no tasks, and its data is prepared elsewhere.",
        body=health.QuarantineWorkerRequest,
        answer=health.WorkerHealth,
        statuses=(200, 404, 409),
    ),
    "POST /v1/workers/{name}/release": Operation(
        name="release_worker",
        scope=Scope.CLUSTER,
        summary="Release a worker from quarantine.",
        body=health.ReleaseRequest,
        answer=health.WorkerHealth,
        statuses=(200, 404, 409),
    ),
    "POST /v1/workers/{name}/check": Operation(
        name="request_check",
        scope=Scope.CLUSTER,
        summary="Request a check of a worker's machine.",
        body=health.CheckRequest,
        answer=health.WorkerHealth,
        statuses=(200, 404, 409),
    ),
    "PUT /v1/workers/{name}/check": Operation(
        name="report_check",
        scope=Scope.WORK,
        summary="For workers: report the result of a check.",
        body=health.CheckResult,
        statuses=(204, 404),
    ),
    "PUT /v1/workers/{name}/pace": Operation(
        name="report_pace",
        scope=Scope.CONTROL,
        summary="For the controller: record a worker's pace relative to the others.",
        body=health.PaceRequest,
        statuses=(204, 404, 409),
    ),
    "GET /v1/workers/{name}/inbox": Operation(
        name="inbox",
        scope=Scope.WORK,
        summary="A worker's inbox after a cursor.",
        answer=api.InboxAnswer,
        query=_Inbox,
    ),
    "GET /v1/whoami": Operation(
        name="whoami",
        scope=Scope.KNOWN,
        summary="The caller with its role and projects; 404 on a cluster without users.",
        answer=Principal,
        statuses=(200, 404),
    ),
    "GET /v1/tokens": Operation(
        name="tokens",
        scope=Scope.TOKENS,
        summary="The caller's tokens, newest first; all tokens for an admin.",
        answer=api.TokensAnswer,
        statuses=(200, 404),
    ),
    "POST /v1/tokens": Operation(
        name="make_token",
        scope=Scope.TOKENS,
        summary="Make a token. Only this answer contains its secret.",
        body=TokenRequest,
        answer=MadeToken,
        statuses=(200, 403, 404, 409),
    ),
    "DELETE /v1/tokens/{token}": Operation(
        name="revoke_token",
        scope=Scope.TOKENS,
        summary="Revoke a token and all tokens made with it.",
        statuses=(204, 404),
    ),
    "GET /v1/notifications": Operation(
        name="notifications",
        scope=Scope.READ,
        summary="Notification targets that the caller may see, with masked addresses, and their results.",
        answer=NotificationsAnswer,
    ),
    "POST /v1/notifications": Operation(
        name="add_notification",
        scope=Scope.STEER,
        summary="Add a notification target. No answer contains its address.",
        body=TargetRequest,
        answer=NotificationTarget,
        statuses=(200, 403, 409),
    ),
    "DELETE /v1/notifications/{name}": Operation(
        name="remove_notification",
        scope=Scope.STEER,
        summary="Remove a notification target.",
        statuses=(204, 403, 404),
    ),
    "POST /v1/notifications/{name}/test": Operation(
        name="test_notification",
        scope=Scope.STEER,
        summary="Request a test message; the target's results show the outcome.",
        answer=NotificationTarget,
        statuses=(200, 404),
    ),
    "GET /v1/outbox": Operation(
        name="outbox",
        scope=Scope.CONTROL,
        summary="For the controller: notification targets with their addresses, and messages to send.",
        answer=OutboxAnswer,
    ),
    "PUT /v1/outbox": Operation(
        name="replace_outbox",
        scope=Scope.CONTROL,
        summary="For the controller: replace the messages to send, cursors and results.",
        body=Outbox,
        statuses=(204, 409),
    ),
    "GET /v1/quotas": Operation(
        name="quotas",
        scope=Scope.READ,
        summary="Quotas of projects, and their usage.",
        answer=api.QuotasAnswer,
    ),
    "PUT /v1/quotas/{name}": Operation(
        name="set_quota",
        scope=Scope.ADMINISTER,
        summary="Set the quota of a project, or of `default` for all without one.",
        body=Quota,
        answer=Quota,
        statuses=(200, 404),
    ),
    "POST /v1/bytes": Operation(
        name="note_bytes",
        scope=Scope.CONTROL,
        summary="For the controller: record the measured bytes of experiments on volumes, for quotas.",
        body=api.BytesRequest,
        answer=api.BytesAnswer,
    ),
    "POST /v1/trials": Operation(
        name="trials",
        scope=Scope.READ,
        summary="Outcomes of earlier trials, by their cache keys.",
        body=api.TrialsRequest,
        answer=api.TrialsAnswer,
    ),
    "PUT /v1/trials": Operation(
        name="keep_trial",
        scope=Scope.CONTROL,
        summary="For the controller: store the outcome of a trial for 90 days.",
        body=TrialRecord,
        answer=TrialRecord,
    ),
    "POST /v1/trials/forget": Operation(
        name="forget_trials",
        scope=Scope.ADMINISTER,
        summary="Remove outcomes of trials, so that later runs measure again.",
        body=api.TrialsRequest,
        answer=api.ForgottenAnswer,
    ),
    "GET /v1/history": Operation(
        name="history",
        scope=Scope.READ,
        summary="Statistics of sub-epochs over all runs.",
        answer=History,
    ),
    "POST /v1/history": Operation(
        name="count_history",
        scope=Scope.CONTROL,
        summary="For the controller: add statistics of a log's events, each event once.",
        body=HistoryRequest,
        answer=HistoryAnswer,
        statuses=(200, 404, 409),
    ),
    "DELETE /v1/history": Operation(
        name="forget_history",
        scope=Scope.ADMINISTER,
        summary="Remove all statistics of sub-epochs. Counted events do not count again.",
        answer=api.ForgottenAnswer,
    ),
    "GET /v1/registry": Operation(
        name="registry",
        scope=Scope.READ,
        summary="Registered models with their versions and aliases.",
        answer=RegistryAnswer,
        query=_Copying,
    ),
    "GET /v1/registry/{name}": Operation(
        name="registered_model",
        scope=Scope.READ,
        summary="One registered model.",
        answer=RegisteredModel,
        statuses=(200, 404),
    ),
    "POST /v1/registry/{name}": Operation(
        name="register_model",
        scope=Scope.STEER,
        summary="Register a model as a new version; calls with the same idempotency key make one.",
        body=Registration,
        answer=ModelVersion,
        headers=(api.ONCE,),
        statuses=(200, 403, 404),
    ),
    "PUT /v1/registry/{name}": Operation(
        name="settle_version",
        scope=Scope.CONTROL,
        summary="For the controller: record the outcome of copying a version's files.",
        body=VersionOutcome,
        answer=ModelVersion,
        statuses=(200, 404),
    ),
    "POST /v1/registry/{name}/aliases": Operation(
        name="move_alias",
        scope=Scope.STEER,
        summary="Point an alias to another version, or remove it.",
        body=AliasRequest,
        answer=RegisteredModel,
        statuses=(200, 403, 404, 409),
    ),
    "PUT /v1/code/{sha256}": Operation(
        name="put_code", scope=Scope.CREATE, summary="Store user code.", body=CodeRecord, answer=CodeRecord
    ),
    "GET /v1/code/{sha256}": Operation(
        name="code", scope=Scope.FETCH, summary="User code by hash.", answer=CodeRecord, statuses=(200, 404)
    ),
    "PUT /v1/archives/{sha256}": Operation(
        name="put_archive",
        scope=Scope.CREATE,
        body=bytes,
        body_kind=BYTES,
        statuses=(204,),
        summary="Store a code archive (bytes).",
    ),
    "GET /v1/archives/{sha256}": Operation(
        name="archive",
        scope=Scope.FETCH,
        answer=bytes,
        answer_kind=BYTES,
        summary="A code archive (bytes).",
        statuses=(200, 404),
    ),
}
"""Operations by method and path. Each has the name of its method in `kvs_api.api.views.Views`."""
