"""The table of routes, and the OpenAPI document made from it and the contract: one source for server and document."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from cerebro.contract import api
from cerebro.contract.events import ClientEvent
from cerebro.contract.records import (
    CodeRecord,
    ExperimentRecord,
    Reclaim,
    SizeRequest,
    Troubles,
    WorkerRecord,
)

Type = type[BaseModel] | TypeAdapter[Any] | None


@dataclass(frozen=True, kw_only=True)
class Route:
    """One route: the view's name in `kvs_api.app`, what it takes and answers. `None` is no body, or bytes."""

    view: str
    summary: str
    body: Type = None
    answer: Type = None
    cursor: bool = False
    query: dict[str, str] = field(default_factory=dict)
    """Further parameters -> type."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers -> type; may be left out."""
    errors: tuple[int, ...] = ()


ROUTES: dict[str, Route] = {
    "GET /health": Route(view="health", summary="State of the service; needs no token.", answer=api.Health),
    "GET /live": Route(
        view="live", summary="Whether the process works, whatever its store does; needs no token."
    ),
    "GET /openapi.json": Route(view="openapi", summary="This document."),
    "POST /v1/leader": Route(
        view="lead", summary="Take or keep the leadership.", body=api.LeaderRequest, answer=api.LeaderAnswer
    ),
    "GET /v1/experiments": Route(
        view="experiments", summary="All experiments, newest event first.", answer=api.ExperimentsAnswer
    ),
    "PUT /v1/experiments/<name>": Route(
        view="create_experiment",
        summary="Create an experiment, or find the same one.",
        body=ExperimentRecord,
        answer=ExperimentRecord,
        errors=(409,),
    ),
    "GET /v1/experiments/<name>": Route(
        view="experiment", summary="One experiment.", answer=ExperimentRecord, errors=(404,)
    ),
    "DELETE /v1/experiments/<name>": Route(
        view="delete_experiment",
        summary="The controller's: forget an experiment that a user asked to delete and whose files are gone.",
        query={"term": "integer"},
        errors=(404, 409),
    ),
    "POST /v1/experiments/<name>/events": Route(
        view="append",
        summary="Append a client's event; calls with the same identity append one.",
        body=TypeAdapter(ClientEvent),
        answer=api.AppendAnswer,
        query={"unread": "integer"},
        headers={api.ONCE: "string"},
        errors=(404, 409),
    ),
    "GET /v1/experiments/<name>/events": Route(
        view="events",
        summary="The event log after a cursor.",
        answer=api.EventsAnswer,
        cursor=True,
        query={"check": "integer"},
        errors=(404,),
    ),
    "PUT /v1/experiments/<name>/quarantine": Route(
        view="quarantine",
        summary="The controller's: quarantine an experiment that cannot be read, so that others go on.",
        body=api.QuarantineRequest,
        errors=(404, 409),
    ),
    "DELETE /v1/experiments/<name>/quarantine": Route(
        view="restore",
        summary="Put an experiment back that was quarantined: it is read anew.",
        errors=(404, 409),
    ),
    "GET /v1/experiments/<name>/live": Route(
        view="points",
        summary="Live points after a cursor.",
        answer=api.LiveAnswer,
        cursor=True,
        errors=(404,),
    ),
    "POST /v1/experiments/<name>/decisions": Route(
        view="decide",
        summary="Apply the controller's steps.",
        body=api.DecideRequest,
        answer=api.DecideAnswer,
        errors=(404, 409),
    ),
    "POST /v1/watch": Route(
        view="watch", summary="Block until a log has news.", body=api.WatchRequest, answer=api.WatchAnswer
    ),
    "GET /v1/queue": Route(
        view="queue",
        summary="Open runs, oldest first, and experiments that are to be deleted.",
        answer=api.QueueAnswer,
    ),
    "GET /v1/audit": Route(
        view="audit",
        summary="What was done that no experiment's log can tell, oldest first.",
        answer=api.AuditAnswer,
    ),
    "GET /v1/reclaim": Route(
        view="reclaim", summary="Data sets that no experiment uses any more.", answer=Reclaim
    ),
    "GET /v1/workers": Route(view="workers", summary="All workers.", answer=api.WorkersAnswer),
    "PUT /v1/workers/<name>": Route(
        view="register",
        summary="Register a worker's new incarnation.",
        body=WorkerRecord,
        answer=WorkerRecord,
    ),
    "DELETE /v1/workers/<name>": Route(
        view="remove_worker",
        summary="Forget a worker that is gone for good.",
        query={"incarnation": "string"},
        errors=(404, 409),
    ),
    "GET /v1/cluster/size": Route(
        view="size", summary="The pending request for a number of workers.", answer=api.SizeAnswer
    ),
    "PUT /v1/cluster/size": Route(
        view="ask_size",
        summary="Ask for a number of workers, or answer a request with a problem.",
        body=SizeRequest,
        answer=SizeRequest,
        errors=(409,),
    ),
    "DELETE /v1/cluster/size": Route(
        view="drop_size", summary="Withdraw a request.", query={"workers": "integer"}, errors=(409,)
    ),
    "GET /v1/cluster/troubles": Route(view="troubles", summary="Why workers do not start.", answer=Troubles),
    "PUT /v1/cluster/troubles": Route(
        view="tell_troubles", summary="Tell why workers do not start.", body=Troubles, answer=Troubles
    ),
    "GET /v1/workers/<name>/usage": Route(
        view="usage", summary="What a worker used over the last day.", answer=api.UsageAnswer, errors=(404,)
    ),
    "POST /v1/workers/<name>/reports": Route(
        view="report", summary="Apply a worker's steps.", body=api.ReportRequest, answer=api.ReportAnswer
    ),
    "GET /v1/workers/<name>/inbox": Route(
        view="inbox",
        summary="A worker's inbox after a cursor.",
        answer=api.InboxAnswer,
        cursor=True,
        query={"incarnation": "string", "places": "string"},
    ),
    "PUT /v1/code/<sha256>": Route(
        view="put_code", summary="Store user code.", body=CodeRecord, answer=CodeRecord
    ),
    "GET /v1/code/<sha256>": Route(
        view="code", summary="User code by hash.", answer=CodeRecord, errors=(404,)
    ),
    "PUT /v1/archives/<sha256>": Route(view="put_archive", summary="Store a code archive (bytes)."),
    "GET /v1/archives/<sha256>": Route(view="archive", summary="A code archive (bytes).", errors=(404,)),
}


_EMPTY = frozenset(
    {"quarantine", "restore", "put_archive", "remove_worker", "drop_size", "delete_experiment"}
)
"""Views that answer with status 204 and no body."""


@cache
def document(version: str) -> str:
    """The OpenAPI 3.1 document as JSON."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for key, route in ROUTES.items():
        method, rule = key.split(" ", 1)
        path = rule.replace("<", "{").replace(">", "}")
        paths.setdefault(path, {})[method.lower()] = _operation(path, route, schemas)
    return json.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "Cerebro key-value store", "version": version},
            "security": [{"token": []}],
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _operation(path: str, route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {"200": {"description": "Done.", **_content(route.answer, schemas)}}
    for status in (400, 401, 413, 503, *route.errors):
        answers[str(status)] = {"description": "See the body.", **_content(api.Problem, schemas)}
    operation: dict[str, Any] = {"operationId": route.view, "summary": route.summary, "responses": answers}
    if path in ("/health", "/live"):
        operation["security"] = []
    if path == "/health":
        answers["503"] = {"description": "The store is away.", **_content(api.Health, schemas)}
    parameters = [_parameter(name, "path", "string") for name in ("name", "sha256") if f"{{{name}}}" in path]
    if route.cursor:
        parameters += [_parameter("after", "query", "integer"), _parameter("wait_s", "query", "number")]
    parameters += [_parameter(name, "query", kind) for name, kind in route.query.items()]
    parameters += [_parameter(name, "header", kind) for name, kind in route.headers.items()]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, **_content(route.body, schemas)}
    if route.view == "put_archive":
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    if route.view in _EMPTY:
        answers["204"] = {"description": "Done."}
    return operation


def _parameter(name: str, place: str, kind: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": kind}}


def _content(kind: Type, schemas: dict[str, Any]) -> dict[str, Any]:
    if kind is None:
        return {}
    template = "#/components/schemas/{model}"
    if isinstance(kind, TypeAdapter):
        schema = kind.json_schema(ref_template=template)
    else:
        schema = kind.model_json_schema(ref_template=template)
    schemas |= schema.pop("$defs", {})
    return {"content": {"application/json": {"schema": schema}}}
