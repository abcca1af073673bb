"""The routes of kvs_api: what each takes and answers.

One table for its server, its OpenAPI document, and the dispatcher, which hands some of them on.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from cerebro.contract import api
from cerebro.contract.events import ClientEvent
from cerebro.contract.openapi import BYTES, Operation
from cerebro.contract.records import (
    CodeRecord,
    ExperimentRecord,
    Reclaim,
    SizeRequest,
    Troubles,
    WorkerRecord,
)
from cerebro.contract.trials import TrialRecord


class _Cursor(BaseModel):
    after: api.Cursor = 0
    wait_s: float = Field(0.0, ge=0, le=api.MAX_WAIT_S)


class _Ledger(BaseModel):
    ledger: int = 0
    """1: the caller knows events of the cluster's log."""


class _Events(_Cursor, _Ledger):
    check: int = 0


class _Inbox(_Cursor):
    incarnation: str = ""
    places: str = ""
    devices: str = ""


class _Term(BaseModel):
    term: api.Cursor


class _Append(BaseModel):
    unread: int = 0


class _Incarnation(BaseModel):
    incarnation: str | None = None


class _Size(BaseModel):
    workers: api.Cursor


STORE: dict[str, Operation] = {
    "GET /health": Operation(
        name="health",
        is_open=True,
        summary="State of the service; needs no token.",
        answer=api.Health,
        answers={503: api.Health},
    ),
    "GET /live": Operation(
        name="live",
        is_open=True,
        summary="Whether the process works, whatever its store does; needs no token.",
    ),
    "GET /openapi.json": Operation(name="openapi", summary="This document.", answer=dict[str, Any]),
    "POST /v1/leader": Operation(
        name="lead", summary="Take or keep the leadership.", body=api.LeaderRequest, answer=api.LeaderAnswer
    ),
    "GET /v1/experiments": Operation(
        name="experiments", summary="All experiments, newest event first.", answer=api.ExperimentsAnswer
    ),
    "PUT /v1/experiments/{name}": Operation(
        name="create_experiment",
        summary="Create an experiment, or find the same one.",
        body=ExperimentRecord,
        answer=ExperimentRecord,
        statuses=(200, 409),
    ),
    "GET /v1/experiments/{name}": Operation(
        name="experiment", summary="One experiment.", answer=ExperimentRecord, statuses=(200, 404)
    ),
    "DELETE /v1/experiments/{name}": Operation(
        name="delete_experiment",
        summary="The controller's: forget an experiment that a user asked to delete and whose files are gone.",
        query=_Term,
        statuses=(204, 404, 409),
    ),
    "POST /v1/experiments/{name}/events": Operation(
        name="append",
        summary="Append a client's event; calls with the same identity append one.",
        body=ClientEvent,
        answer=api.AppendAnswer,
        query=_Append,
        headers=(api.ONCE,),
        statuses=(200, 404, 409),
    ),
    "GET /v1/experiments/{name}/events": Operation(
        name="events",
        summary="The event log after a cursor.",
        answer=api.EventsAnswer,
        query=_Events,
        statuses=(200, 404, 409),
    ),
    "PUT /v1/experiments/{name}/quarantine": Operation(
        name="quarantine",
        summary="The controller's: quarantine an experiment that cannot be read, so that others go on.",
        body=api.QuarantineRequest,
        statuses=(204, 404, 409),
    ),
    "DELETE /v1/experiments/{name}/quarantine": Operation(
        name="restore",
        summary="Put an experiment back that was quarantined: it is read anew.",
        statuses=(204, 404, 409),
    ),
    "GET /v1/experiments/{name}/live": Operation(
        name="points",
        summary="Live points after a cursor.",
        answer=api.LiveAnswer,
        query=_Cursor,
        statuses=(200, 404),
    ),
    "POST /v1/experiments/{name}/decisions": Operation(
        name="decide",
        summary="Apply the controller's steps.",
        body=api.DecideRequest,
        answer=api.DecideAnswer,
        query=_Ledger,
        statuses=(200, 404, 409),
    ),
    "POST /v1/watch": Operation(
        name="watch",
        summary="Block until a log has news.",
        body=api.WatchRequest,
        answer=api.WatchAnswer,
        query=_Ledger,
        statuses=(200, 409),
    ),
    "GET /v1/cluster/log": Operation(
        name="ledger",
        summary="The cluster's log after a cursor: workers that came and went, and what they hold.",
        answer=api.LedgerAnswer,
        query=_Cursor,
    ),
    "POST /v1/cluster/log": Operation(
        name="write_ledger",
        summary="The controller's: append to the cluster's log, if nothing was appended meanwhile.",
        body=api.LedgerRequest,
        answer=api.LedgerAnswer,
        statuses=(200, 409),
    ),
    "GET /v1/queue": Operation(
        name="queue",
        summary="Open runs, oldest first, and experiments that are to be deleted.",
        answer=api.QueueAnswer,
        query=_Ledger,
        statuses=(200, 409),
    ),
    "GET /v1/audit": Operation(
        name="audit",
        summary="What was done that no experiment's log can tell, oldest first.",
        answer=api.AuditAnswer,
    ),
    "GET /v1/reclaim": Operation(
        name="reclaim", summary="Data sets that no experiment uses any more.", answer=Reclaim
    ),
    "GET /v1/workers": Operation(name="workers", summary="All workers.", answer=api.WorkersAnswer),
    "PUT /v1/workers/{name}": Operation(
        name="register",
        summary="Register a worker's new incarnation.",
        body=WorkerRecord,
        answer=WorkerRecord,
    ),
    "DELETE /v1/workers/{name}": Operation(
        name="remove_worker",
        summary="Forget a worker that is gone for good.",
        query=_Incarnation,
        statuses=(204, 404, 409),
    ),
    "GET /v1/cluster/size": Operation(
        name="size_request", summary="The pending request for a number of workers.", answer=api.SizeAnswer
    ),
    "PUT /v1/cluster/size": Operation(
        name="request_size",
        summary="Ask for a number of workers, or answer a request with a problem.",
        body=SizeRequest,
        answer=SizeRequest,
        statuses=(200, 409),
    ),
    "DELETE /v1/cluster/size": Operation(
        name="withdraw_size_request", summary="Withdraw a request.", query=_Size, statuses=(204, 409)
    ),
    "GET /v1/cluster/troubles": Operation(
        name="troubles", summary="Why workers do not start.", answer=Troubles
    ),
    "PUT /v1/cluster/troubles": Operation(
        name="set_troubles", summary="Tell why workers do not start.", body=Troubles, answer=Troubles
    ),
    "GET /v1/workers/{name}/usage": Operation(
        name="usage",
        summary="What a worker used over the last day.",
        answer=api.UsageAnswer,
        statuses=(200, 404),
    ),
    "POST /v1/workers/{name}/reports": Operation(
        name="report", summary="Apply a worker's steps.", body=api.ReportRequest, answer=api.ReportAnswer
    ),
    "GET /v1/workers/{name}/inbox": Operation(
        name="inbox",
        summary="A worker's inbox after a cursor.",
        answer=api.InboxAnswer,
        query=_Inbox,
    ),
    "POST /v1/trials": Operation(
        name="trials",
        summary="Outcomes of earlier trials, by what they depend on.",
        body=api.TrialsRequest,
        answer=api.TrialsAnswer,
    ),
    "PUT /v1/trials": Operation(
        name="keep_trial",
        summary="Keep the outcome of a trial for 90 days.",
        body=TrialRecord,
        answer=TrialRecord,
    ),
    "POST /v1/trials/forget": Operation(
        name="forget_trials",
        summary="Remove outcomes: they are measured anew when they are needed.",
        body=api.TrialsRequest,
        answer=api.ForgottenAnswer,
    ),
    "PUT /v1/code/{sha256}": Operation(
        name="put_code", summary="Store user code.", body=CodeRecord, answer=CodeRecord
    ),
    "GET /v1/code/{sha256}": Operation(
        name="code", summary="User code by hash.", answer=CodeRecord, statuses=(200, 404)
    ),
    "PUT /v1/archives/{sha256}": Operation(
        name="put_archive",
        body=bytes,
        body_kind=BYTES,
        statuses=(204,),
        summary="Store a code archive (bytes).",
    ),
    "GET /v1/archives/{sha256}": Operation(
        name="archive",
        answer=bytes,
        answer_kind=BYTES,
        summary="A code archive (bytes).",
        statuses=(200, 404),
    ),
}
"""By method and path. An operation's name is that of its method of `kvs_api.views.Views`."""
