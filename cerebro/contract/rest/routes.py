"""Routes of kvs_api with the types of their requests and answers.

The server, its OpenAPI document and the dispatcher, which forwards some routes, share this table.
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
    Troubles,
    WorkerRecord,
)
from cerebro.contract.rest import api
from cerebro.contract.rest.openapi import BYTES, Operation
from cerebro.contract.stored import health
from cerebro.contract.stored.history import History, HistoryAnswer, HistoryRequest
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
        summary="Whether the process works, whatever its store does; needs no token.",
    ),
    "GET /openapi.json": Operation(
        name="openapi", scope=Scope.READ, summary="This document.", answer=dict[str, Any]
    ),
    "POST /v1/leader": Operation(
        name="lead",
        scope=Scope.CONTROL,
        summary="Take or keep the leadership.",
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
        summary="Create an experiment, or find the same one.",
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
        summary="The controller's: forget an experiment that a user asked to delete and whose files are gone.",
        query=_Term,
        statuses=(204, 404, 409),
    ),
    "POST /v1/experiments/{name}/events": Operation(
        name="append",
        scope=Scope.STEER,
        summary="Append a client's event; calls with the same identity append one.",
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
        summary="What of a log is in files, and in the database no more.",
        answer=SegmentsAnswer,
        statuses=(200, 404),
    ),
    "POST /v1/experiments/{name}/segments": Operation(
        name="cut",
        scope=Scope.CONTROL,
        summary="The controller's: move the older part of a log into a file.",
        body=SegmentRequest,
        answer=SegmentAnswer,
        statuses=(200, 404, 409),
    ),
    "GET /v1/experiments/{name}/snapshot": Operation(
        name="snapshot",
        scope=Scope.READ,
        summary="The newest fold of a log of a format (bytes).",
        answer=bytes,
        answer_kind=BYTES,
        query=_Format,
        statuses=(200, 404),
    ),
    "PUT /v1/experiments/{name}/snapshot": Operation(
        name="keep_snapshot",
        scope=Scope.CONTROL,
        summary="The controller's: keep the fold of a log (bytes).",
        body=bytes,
        body_kind=BYTES,
        answer=Snapshot,
        query=_NewSnapshot,
        statuses=(200, 404, 409),
    ),
    "PUT /v1/experiments/{name}/quarantine": Operation(
        name="quarantine",
        scope=Scope.CONTROL,
        summary="The controller's: quarantine an experiment that cannot be read, so that others go on.",
        body=api.QuarantineRequest,
        statuses=(204, 404, 409),
    ),
    "DELETE /v1/experiments/{name}/quarantine": Operation(
        name="restore",
        scope=Scope.ADMINISTER,
        summary="Put an experiment back that was quarantined: it is read anew.",
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
        summary="Ask the worker that runs a task where its process is.",
        body=api.StacksRequest,
        answer=api.StacksRequested,
        statuses=(200, 404, 409),
    ),
    "GET /v1/experiments/{name}/stacks": Operation(
        name="stacks",
        scope=Scope.READ,
        summary="What the worker has answered; kept for five minutes.",
        answer=api.StacksAnswer,
        query=_Question,
        statuses=(200, 404),
    ),
    "POST /v1/experiments/{name}/decisions": Operation(
        name="decide",
        scope=Scope.CONTROL,
        summary="Apply the controller's steps.",
        body=api.DecideRequest,
        answer=api.DecideAnswer,
        statuses=(200, 404, 409),
    ),
    "POST /v1/watch": Operation(
        name="watch",
        scope=Scope.READ,
        summary="Block until a log has news.",
        body=api.WatchRequest,
        answer=api.WatchAnswer,
        statuses=(200, 409),
    ),
    "GET /v1/cluster/log": Operation(
        name="cluster_log",
        scope=Scope.READ,
        summary="The cluster's log after a cursor: workers that came and went, and what they hold.",
        answer=api.ClusterLogAnswer,
        query=_Cursor,
    ),
    "POST /v1/cluster/log": Operation(
        name="write_cluster_log",
        scope=Scope.CONTROL,
        summary="The controller's: append to the cluster's log, if nothing was appended meanwhile.",
        body=api.ClusterLogRequest,
        answer=api.ClusterLogAnswer,
        statuses=(200, 409),
    ),
    "GET /v1/cluster/log/segments": Operation(
        name="cluster_log_segments",
        scope=Scope.READ,
        summary="What of the cluster's log is in files, and in the database no more.",
        answer=SegmentsAnswer,
    ),
    "POST /v1/cluster/log/segments": Operation(
        name="cut_cluster_log",
        scope=Scope.CONTROL,
        summary="The controller's: move the older part of the cluster's log into a file.",
        body=SegmentRequest,
        answer=SegmentAnswer,
        statuses=(200, 409),
    ),
    "GET /v1/cluster/log/snapshot": Operation(
        name="cluster_log_snapshot",
        scope=Scope.READ,
        summary="The newest fold of the cluster's log of a format (bytes).",
        answer=bytes,
        answer_kind=BYTES,
        query=_Format,
        statuses=(200, 404),
    ),
    "PUT /v1/cluster/log/snapshot": Operation(
        name="keep_cluster_log_snapshot",
        scope=Scope.CONTROL,
        summary="The controller's: keep the fold of the cluster's log (bytes).",
        body=bytes,
        body_kind=BYTES,
        answer=Snapshot,
        query=_NewSnapshot,
        statuses=(200, 409),
    ),
    "GET /v1/queue": Operation(
        name="queue",
        scope=Scope.READ,
        summary="Open runs, oldest first, and experiments that are to be deleted.",
        answer=api.QueueAnswer,
        statuses=(200, 409),
    ),
    "GET /v1/audit": Operation(
        name="audit",
        scope=Scope.READ,
        summary="What was done that no experiment's log can tell, oldest first.",
        answer=api.AuditAnswer,
        query=_Last,
    ),
    "POST /v1/audit": Operation(
        name="note_audit",
        scope=Scope.ACT,
        summary="The dispatcher's: note what somebody did there, such as a sign-in or a download.",
        body=api.AuditRequest,
        statuses=(204,),
    ),
    "GET /v1/sessions/{name}": Operation(
        name="session",
        scope=Scope.ACT,
        summary="The dispatcher's: whether somebody has signed out of a session.",
        answer=api.SessionAnswer,
    ),
    "DELETE /v1/sessions/{name}": Operation(
        name="end_session",
        scope=Scope.ACT,
        summary="The dispatcher's: somebody has signed out of a session, which has ended for good.",
        statuses=(204,),
    ),
    "GET /v1/reclaim": Operation(
        name="reclaim",
        scope=Scope.FETCH,
        summary="Data sets that no experiment uses any more.",
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
        summary="Forget a worker that is gone for good.",
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
        summary="Ask for a number of workers, or answer a request with a problem.",
        body=SizeRequest,
        answer=SizeRequest,
        statuses=(200, 409),
    ),
    "DELETE /v1/cluster/size": Operation(
        name="withdraw_size_request",
        scope=Scope.CLUSTER,
        summary="Withdraw a request.",
        query=_Size,
        statuses=(204, 409),
    ),
    "GET /v1/cluster/troubles": Operation(
        name="troubles", scope=Scope.READ, summary="Why workers do not start.", answer=Troubles
    ),
    "PUT /v1/cluster/troubles": Operation(
        name="set_troubles",
        scope=Scope.CONTROL,
        summary="Tell why workers do not start.",
        body=Troubles,
        answer=Troubles,
    ),
    "GET /v1/workers/{name}/usage": Operation(
        name="usage",
        scope=Scope.READ,
        summary="What a worker used over the last day.",
        answer=api.UsageAnswer,
        statuses=(200, 404),
    ),
    "POST /v1/workers/{name}/reports": Operation(
        name="report",
        scope=Scope.WORK,
        summary="Apply a worker's steps.",
        body=api.ReportRequest,
        answer=api.ReportAnswer,
    ),
    "POST /v1/workers/{name}/stacks": Operation(
        name="report_stacks",
        scope=Scope.WORK,
        summary="A worker's: where the process of a task is, as it was asked.",
        body=api.StacksReport,
        statuses=(204,),
    ),
    "GET /v1/cluster/health": Operation(
        name="workers_health",
        scope=Scope.READ,
        summary="What is known of workers' machines: checks, quarantine, incidents.",
        answer=health.HealthAnswer,
    ),
    "POST /v1/cluster/health": Operation(
        name="report_incident",
        scope=Scope.CONTROL,
        summary="The controller's: something that people are to know of a worker's machine.",
        body=health.IncidentRequest,
        statuses=(204, 409),
    ),
    "PUT /v1/workers/{name}/quarantine": Operation(
        name="quarantine_worker",
        scope=Scope.CLUSTER,
        summary="Give a worker nothing more; what it holds is made elsewhere.",
        body=health.QuarantineWorkerRequest,
        answer=health.WorkerHealth,
        statuses=(200, 404, 409),
    ),
    "POST /v1/workers/{name}/release": Operation(
        name="release_worker",
        scope=Scope.CLUSTER,
        summary="Give a worker tasks again.",
        body=health.ReleaseRequest,
        answer=health.WorkerHealth,
        statuses=(200, 404, 409),
    ),
    "POST /v1/workers/{name}/check": Operation(
        name="request_check",
        scope=Scope.CLUSTER,
        summary="Have a worker check its machine.",
        body=health.CheckRequest,
        answer=health.WorkerHealth,
        statuses=(200, 404, 409),
    ),
    "PUT /v1/workers/{name}/check": Operation(
        name="report_check",
        scope=Scope.WORK,
        summary="A worker's: what it found of its machine.",
        body=health.CheckResult,
        statuses=(204, 404),
    ),
    "PUT /v1/workers/{name}/pace": Operation(
        name="report_pace",
        scope=Scope.CONTROL,
        summary="The controller's: how long a worker's sub-epochs take, against the others'.",
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
        summary="Who the caller is, and what it may; 404 where there are no users.",
        answer=Principal,
        statuses=(200, 404),
    ),
    "GET /v1/tokens": Operation(
        name="tokens",
        scope=Scope.TOKENS,
        summary="The caller's tokens, newest first; an admin's: all.",
        answer=api.TokensAnswer,
        statuses=(200, 404),
    ),
    "POST /v1/tokens": Operation(
        name="make_token",
        scope=Scope.TOKENS,
        summary="Make a token. Its secret is in this answer and nowhere else.",
        body=TokenRequest,
        answer=MadeToken,
        statuses=(200, 403, 404, 409),
    ),
    "DELETE /v1/tokens/{token}": Operation(
        name="revoke_token",
        scope=Scope.TOKENS,
        summary="Revoke a token, and those that were made with it.",
        statuses=(204, 404),
    ),
    "GET /v1/quotas": Operation(
        name="quotas",
        scope=Scope.READ,
        summary="Quotas of projects, and what they use.",
        answer=api.QuotasAnswer,
    ),
    "PUT /v1/quotas/{name}": Operation(
        name="set_quota",
        scope=Scope.ADMINISTER,
        summary="What a project may have, or `default` for all that have no quota of their own.",
        body=Quota,
        answer=Quota,
        statuses=(200, 404),
    ),
    "POST /v1/bytes": Operation(
        name="note_bytes",
        scope=Scope.CONTROL,
        summary="The controller's: bytes of experiments on volumes, as it measured them. For quotas.",
        body=api.BytesRequest,
        answer=api.BytesAnswer,
    ),
    "POST /v1/trials": Operation(
        name="trials",
        scope=Scope.READ,
        summary="Outcomes of earlier trials, by what they depend on.",
        body=api.TrialsRequest,
        answer=api.TrialsAnswer,
    ),
    "PUT /v1/trials": Operation(
        name="keep_trial",
        scope=Scope.CONTROL,
        summary="Keep the outcome of a trial for 90 days.",
        body=TrialRecord,
        answer=TrialRecord,
    ),
    "POST /v1/trials/forget": Operation(
        name="forget_trials",
        scope=Scope.ADMINISTER,
        summary="Remove outcomes: they are measured anew when they are needed.",
        body=api.TrialsRequest,
        answer=api.ForgottenAnswer,
    ),
    "GET /v1/history": Operation(
        name="history",
        scope=Scope.READ,
        summary="What sub-epochs have shown over all runs.",
        answer=History,
    ),
    "POST /v1/history": Operation(
        name="count_history",
        scope=Scope.CONTROL,
        summary="The controller's: what events of a log have shown, to be counted once.",
        body=HistoryRequest,
        answer=HistoryAnswer,
        statuses=(200, 404, 409),
    ),
    "DELETE /v1/history": Operation(
        name="forget_history",
        scope=Scope.ADMINISTER,
        summary="Forget what sub-epochs have shown; what was counted is not counted anew.",
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
        summary="One of them.",
        answer=RegisteredModel,
        statuses=(200, 404),
    ),
    "POST /v1/registry/{name}": Operation(
        name="register_model",
        scope=Scope.STEER,
        summary="Register a model of an experiment as a new version; calls with the same identity make one.",
        body=Registration,
        answer=ModelVersion,
        headers=(api.ONCE,),
        statuses=(200, 403, 404),
    ),
    "PUT /v1/registry/{name}": Operation(
        name="settle_version",
        scope=Scope.CONTROL,
        summary="The controller's: the files of a version were copied, or cannot be.",
        body=VersionOutcome,
        answer=ModelVersion,
        statuses=(200, 404),
    ),
    "POST /v1/registry/{name}/aliases": Operation(
        name="move_alias",
        scope=Scope.STEER,
        summary="Have an alias mean another version, or none.",
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
"""Operations by method and path. Each is named after its method of `kvs_api.api.views.Views`."""
