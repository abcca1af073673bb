"""The OpenAPI document of the dispatcher: what it shows as JSON, and the part of the store's API that it hands on.

Made from one table of routes and from the types of what they take and answer, so it cannot say anything else than the
program does. Pages are not in it: they are for people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, TypeAdapter

from cerebro.contract import api
from cerebro.contract.events import ClientEvent
from cerebro.contract.records import CodeRecord, ExperimentRecord, SizeRequest, Troubles

JSON, CSV, BYTES = "application/json", "text/csv", "application/octet-stream"
SVG = "image/svg+xml"

_EVERY = (401, 429, 503)
"""Any route may answer so: without the token, after too many wrong ones, while the store is away."""
_MEANING = {
    200: "Done.",
    204: "Done.",
    206: "A part of the file.",
    304: "Nothing has changed since the answer whose tag was sent.",
    400: "A parameter or the body cannot be understood: the message says which.",
    401: "The token is missing or wrong.",
    403: "Another site's page asks in the name of who is signed in.",
    404: "There is no such thing.",
    409: "It does not fit what is.",
    413: "The body is too large.",
    416: "The file has no such part.",
    429: "Too many wrong tokens came from this address.",
    503: "The store does not answer, or too much is asked at once.",
}


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path.

    Attributes:
        summary: a sentence. query: a model of its parameters. body, answer: types of what comes in and goes out; `None`
            is nothing. body_kind, answer_kind: media types. statuses: all that it may answer with beside `_EVERY`.
    """

    summary: str
    query: type[BaseModel] | None = None
    body: Any = None
    answer: Any = None
    body_kind: str = JSON
    answer_kind: str = JSON
    statuses: tuple[int, ...] = (200,)
    answers: Mapping[int, Any] = field(default_factory=dict)
    """Bodies of further statuses that are no `Problem`."""


class _Cursor(BaseModel):
    after: api.Cursor = 0
    wait_s: float = 0.0


class _Size(BaseModel):
    workers: int


_NAMED = (200, 400, 404)

GATEWAY: dict[str, Operation] = {
    "GET /health": Operation(summary="State of the store.", answer=api.Health, answers={503: dict[str, Any]}),
    "GET /openapi.json": Operation(summary="The store's own document.", answer=dict[str, Any]),
    "GET /v1/experiments": Operation(
        summary="All experiments, newest event first.", answer=api.ExperimentsAnswer
    ),
    "GET /v1/experiments/{name}": Operation(
        summary="One experiment.", answer=ExperimentRecord, statuses=_NAMED
    ),
    "PUT /v1/experiments/{name}": Operation(
        summary="Create an experiment, or find the same one.",
        body=ExperimentRecord,
        answer=ExperimentRecord,
        statuses=(200, 400, 404, 409, 413),
    ),
    "GET /v1/experiments/{name}/events": Operation(
        summary="The event log after a cursor.", query=_Cursor, answer=api.EventsAnswer, statuses=_NAMED
    ),
    "POST /v1/experiments/{name}/events": Operation(
        summary="Append a user's event.",
        body=ClientEvent,
        answer=api.AppendAnswer,
        statuses=(200, 400, 404, 409, 413),
    ),
    "DELETE /v1/experiments/{name}/quarantine": Operation(
        summary="Restore an experiment that was quarantined because it could not be read.",
        statuses=(204, 400, 404, 409),
    ),
    "GET /v1/experiments/{name}/live": Operation(
        summary="Live points after a cursor.", query=_Cursor, answer=api.LiveAnswer, statuses=_NAMED
    ),
    "POST /v1/watch": Operation(
        summary="Wait until a log has news.",
        body=api.WatchRequest,
        answer=api.WatchAnswer,
        statuses=(200, 400, 413),
    ),
    "GET /v1/queue": Operation(summary="Open runs, oldest first.", answer=api.QueueAnswer),
    "GET /v1/workers": Operation(summary="All workers.", answer=api.WorkersAnswer),
    "GET /v1/workers/{name}/usage": Operation(
        summary="A worker's use of its machine over the last day.", answer=api.UsageAnswer, statuses=_NAMED
    ),
    "GET /v1/audit": Operation(summary="What was done to the cluster.", answer=api.AuditAnswer),
    "GET /v1/code/{sha256}": Operation(summary="User code by hash.", answer=CodeRecord, statuses=_NAMED),
    "PUT /v1/code/{sha256}": Operation(
        summary="Store user code.",
        body=CodeRecord,
        answer=CodeRecord,
        statuses=(200, 400, 404, 413),
    ),
    "GET /v1/archives/{sha256}": Operation(
        summary="A code archive.", answer=bytes, answer_kind=BYTES, statuses=_NAMED
    ),
    "PUT /v1/archives/{sha256}": Operation(
        summary="Store a code archive.", body=bytes, body_kind=BYTES, statuses=(204, 400, 404, 413)
    ),
    "GET /v1/cluster/size": Operation(
        summary="The pending request for a number of workers.", answer=api.SizeAnswer
    ),
    "PUT /v1/cluster/size": Operation(
        summary="Wish a number of workers.",
        body=SizeRequest,
        answer=SizeRequest,
        statuses=(200, 400, 409, 413),
    ),
    "DELETE /v1/cluster/size": Operation(
        summary="Withdraw a request.", query=_Size, statuses=(204, 400, 409)
    ),
    "GET /v1/cluster/troubles": Operation(summary="Why workers do not start.", answer=Troubles),
}
"""What is handed on to the store, below ``/api``."""


def document(version: str, views: Mapping[str, Operation]) -> str:
    """The OpenAPI 3.1 document as JSON; `views` are the operations of the read API, by method and path."""
    schemas: dict[str, Any] = {"Problem": api.Problem.model_json_schema()}
    paths: dict[str, dict[str, Any]] = {}
    operations = {**views, **{f"{k.split()[0]} /api{k.split()[1]}": op for k, op in GATEWAY.items()}}
    for key, operation in operations.items():
        method, path = key.split(" ")
        paths.setdefault(path, {})[method.lower()] = _described(key, path, operation, schemas)
    return json.dumps(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Cerebro",
                "version": version,
                "description": "Read what the page shows, and ask for runs. Times are seconds since the epoch.",
            },
            "security": [{"token": []}],
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _described(key: str, path: str, operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status in sorted({*operation.statuses, *_EVERY}):
        answers[str(status)] = {"description": _MEANING[status]}
        if status in operation.answers:
            answers[str(status)] |= _content(operation.answers[status], JSON, schemas)
        elif status in (200, 206):
            answers[str(status)] |= _content(operation.answer, operation.answer_kind, schemas)
        elif status >= 400:
            answers[str(status)] |= _PROBLEM
    found: dict[str, Any] = {
        "operationId": key.replace("/", "_").replace(" ", "").replace("{", "").replace("}", ""),
        "summary": operation.summary,
        "responses": answers,
    }
    parameters = [*_path_parameters(path), *_query_parameters(operation.query, schemas)]
    if parameters:
        found["parameters"] = parameters
    if operation.body is not None:
        found["requestBody"] = {
            "required": True,
            **_content(operation.body, operation.body_kind, schemas, is_input=True),
        }
    return found


_PROBLEM = {"content": {JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
_PATTERNS = {
    "name": r"^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?$",
    "sha256": r"^[0-9a-f]{64}$",
}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", **({"pattern": _PATTERNS[name]} if name in _PATTERNS else {})},
        }
        for name in names
    ]


def _query_parameters(query: type[BaseModel] | None, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    if query is None:
        return []
    schema = _schema(query, schemas, is_input=True)
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": each}
        for name, each in schema["properties"].items()
    ]


def _content(kind: Any, media: str, schemas: dict[str, Any], *, is_input: bool = False) -> dict[str, Any]:
    if kind is None:
        return {}
    if media == BYTES:
        return {"content": {media: {}}}
    if media in (CSV, SVG):
        return {"content": {media: {"schema": {"type": "string"}}}}
    schema = _schema(kind, schemas, is_input=is_input)
    name = schema.get("title", "")
    if schema.get("type") == "object" and name and "properties" in schema and not is_input:
        schemas[name] = schema
        schema = {"$ref": f"#/components/schemas/{name}"}
    return {"content": {media: {"schema": schema}}}


def _schema(kind: Any, schemas: dict[str, Any], *, is_input: bool) -> dict[str, Any]:
    # What goes out has all of its fields; of what comes in those with defaults may be absent: two schemas.
    suffix = ".input" if is_input else ""
    found = TypeAdapter(kind).json_schema(
        ref_template=f"#/components/schemas/{{model}}{suffix}",
        mode="validation" if is_input else "serialization",
    )
    schemas |= {f"{name}{suffix}": each for name, each in found.pop("$defs", {}).items()}
    return found
