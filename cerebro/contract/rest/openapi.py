"""Build OpenAPI documents from a table of operations (`Operation`) and their types. Pure.

kvs_api (`routes.STORE`) and the dispatcher (`dispatcher.api.routes`) serve the result. Both route requests by the same
tables, so the documents match the programs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, TypeAdapter

from cerebro.contract.accounts.identity import Scope
from cerebro.contract.rest import api

JSON, CSV, BYTES = "application/json", "text/csv", "application/octet-stream"
SVG = "image/svg+xml"

_MEANING = {
    200: "Done.",
    204: "Done.",
    304: "Unchanged since the answer whose tag was sent.",
    400: "A parameter or the body is invalid: the message says which.",
    401: "The token is missing or wrong.",
    403: "The caller lacks the permission, or the request came from another site's page.",
    404: "The object does not exist.",
    409: "The request conflicts with the present state.",
    413: "The body is too large.",
    429: "Too many wrong tokens came from this address.",
    503: "The store does not answer, or there are too many requests.",
}


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path.

    Attributes:
        summary: a sentence. name: its id; by default from method and path. query: a model of its parameters.
            headers: optional headers that it reads. body, answer: types of request and answer; `None` is no
            content. body_kind, answer_kind: media types. statuses: its possible statuses, in addition to the
            document's common ones. is_open: True if it needs no token. scope: scope that the caller needs.
    """

    summary: str
    name: str = ""
    query: type[BaseModel] | None = None
    headers: tuple[str, ...] = ()
    body: Any = None
    answer: Any = None
    body_kind: str = JSON
    answer_kind: str = JSON
    statuses: tuple[int, ...] = (200,)
    answers: Mapping[int, Any] = field(default_factory=dict)
    """Bodies of further statuses that are no `Problem`."""
    is_open: bool = False
    scope: Scope | None = None
    """Scope that a caller of kvs_api needs; `None` for other services."""


def document(info: Mapping[str, str], operations: Mapping[str, Operation], every: tuple[int, ...]) -> str:
    """Return the OpenAPI 3.1 document as JSON.

    Args:
        info: title, version and optional description.
        operations: by method and path, separated by a space; path parameters in braces.
        every: statuses that any operation may answer.
    """
    # Answers contain all fields, but requests may omit fields with defaults: two modes.
    found, shared = TypeAdapter.json_schemas(
        [
            (place, "validation" if place[1] in (_QUERY, _BODY) else "serialization", TypeAdapter(kind))
            for place, kind in _types(operations)
        ],
        ref_template=f"{_COMPONENTS}{{model}}",
    )
    schemas = {place: schema for (place, _), schema in found.items()}
    components = shared["$defs"]
    paths: dict[str, dict[str, Any]] = {}
    for key, operation in operations.items():
        method, path = key.split(" ")
        query = schemas.get((key, _QUERY), {"$ref": ""})["$ref"].removeprefix(_COMPONENTS)
        paths.setdefault(path, {})[method.lower()] = {
            "operationId": operation.name
            or "".join(each for each in key.replace("/", "_") if each not in " {}"),
            "summary": operation.summary,
            **({"x-scope": operation.scope.value} if operation.scope is not None else {}),
            "parameters": [*_path(path), *_query(components.get(query, {})), *_headers(operation)],
            "responses": {
                str(status): _answer(key, operation, status, schemas)
                for status in sorted({*operation.statuses, *every})
            },
            **_request_body(key, operation, schemas),
            **({"security": []} if operation.is_open else {}),
        }
    token = {"type": "http", "scheme": "bearer"}
    return json.dumps(
        {
            "openapi": "3.1.0",
            "info": info,
            "security": [{"token": []}],
            "paths": paths,
            "components": {"schemas": components, "securitySchemes": {"token": token}},
        }
    )


Place = tuple[str, int]
"""Position of a schema: method and path, and an answer's status or one of these two."""
_QUERY, _BODY = 0, 1
_PROBLEM: Place = ("", 400)
_COMPONENTS = "#/components/schemas/"
_NAMES = r"^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?$"
_PATTERNS = {"name": {"pattern": _NAMES}, "sha256": {"pattern": r"^[0-9a-f]{64}$"}}


def _types(operations: Mapping[str, Operation]) -> Iterator[tuple[Place, Any]]:
    yield _PROBLEM, api.Problem
    for key, operation in operations.items():
        if operation.query is not None:
            yield (key, _QUERY), operation.query
        if operation.body is not None and operation.body_kind == JSON:
            yield (key, _BODY), operation.body
        if operation.answer is not None and operation.answer_kind == JSON:
            yield (key, 200), operation.answer
        for status, kind in operation.answers.items():
            yield (key, status), kind


def _answer(key: str, operation: Operation, status: int, schemas: Mapping[Place, Any]) -> dict[str, Any]:
    schema = schemas.get((key, status), schemas[_PROBLEM] if status >= 400 else None)
    content: dict[str, Any] = {}
    if schema is not None:
        content = {JSON: {"schema": schema}}
    elif status == 200 and operation.answer is not None:
        content = {
            operation.answer_kind: {} if operation.answer_kind == BYTES else {"schema": {"type": "string"}}
        }
    return {"description": _MEANING[status], **({"content": content} if content else {})}


def _request_body(key: str, operation: Operation, schemas: Mapping[Place, Any]) -> dict[str, Any]:
    if operation.body is None:
        return {}
    media = {"schema": schemas[(key, _BODY)]} if (key, _BODY) in schemas else {}
    return {"requestBody": {"required": True, "content": {operation.body_kind: media}}}


def _path(path: str) -> Iterator[dict[str, Any]]:
    for part in path.split("/"):
        if part.startswith("{"):
            name = part[1:-1]
            schema = {"type": "string", **_PATTERNS.get(name, {})}
            yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query(model: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, schema in model.get("properties", {}).items():
        yield {"name": name, "in": "query", "required": name in model.get("required", ()), "schema": schema}


def _headers(operation: Operation) -> Iterator[dict[str, Any]]:
    for name in operation.headers:
        yield {"name": name, "in": "header", "schema": {"type": "string"}}
