"""OpenAPI documents, made from tables of operations and the types of what they take and answer.

So a document cannot say anything else than the program does. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, TypeAdapter

from cerebro.contract import api

JSON, CSV, BYTES = "application/json", "text/csv", "application/octet-stream"
SVG = "image/svg+xml"

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
        summary: a sentence. name: its id; made of method and path where it is empty. query: a model of its parameters.
            headers: those that it reads; they may be left out. body, answer: types of what comes in and goes out;
            `None` is nothing. body_kind, answer_kind: media types. statuses: all that it may answer with, beside those
            that any operation of the document may. is_open: whether it needs no token.
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


def document(info: Mapping[str, str], operations: Mapping[str, Operation], every: tuple[int, ...]) -> str:
    """The OpenAPI 3.1 document as JSON.

    Args:
        info: title and version, perhaps a description.
        operations: by method and path, a space between; parameters of the path in braces.
        every: statuses that any of them may answer with.
    """
    schemas: dict[str, Any] = {"Problem": api.Problem.model_json_schema()}
    paths: dict[str, dict[str, Any]] = {}
    for key, operation in operations.items():
        method, path = key.split(" ")
        paths.setdefault(path, {})[method.lower()] = _described(key, path, operation, schemas, every)
    return json.dumps(
        {
            "openapi": "3.1.0",
            "info": info,
            "security": [{"token": []}],
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _described(
    key: str, path: str, operation: Operation, schemas: dict[str, Any], every: tuple[int, ...]
) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status in sorted({*operation.statuses, *every}):
        answers[str(status)] = {"description": _MEANING[status]}
        if status in operation.answers:
            answers[str(status)] |= _content(operation.answers[status], JSON, schemas)
        elif status in (200, 206):
            answers[str(status)] |= _content(operation.answer, operation.answer_kind, schemas)
        elif status >= 400:
            answers[str(status)] |= _PROBLEM
    found: dict[str, Any] = {
        "operationId": operation.name
        or "".join(letter for letter in key.replace("/", "_") if letter not in " {}"),
        "summary": operation.summary,
        "responses": answers,
    }
    if operation.is_open:
        found["security"] = []
    parameters = [
        *_path_parameters(path),
        *_query_parameters(operation.query, schemas),
        *({"name": name, "in": "header", "schema": {"type": "string"}} for name in operation.headers),
    ]
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
