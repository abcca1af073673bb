"""Write the REST reference from the OpenAPI document that the dispatcher serves."""

from __future__ import annotations

import json
from typing import Any

from dispatcher.api.views import openapi_document
from docs.site.tables import code, table

_HEAD = """\
# REST API

The dispatcher serves these routes for scripts and other programs; `/openapi.json` describes them to tools. A request
needs `Authorization: Bearer TOKEN`. *Scope* names the right that the caller needs on a cluster with
[users](../users.md); routes without a scope need the right to read.
[The web page](../web-page.md#api-for-clients) describes limits and files.

All times are seconds since the epoch. An error has the fields of [Problem](#problem).
"""
_JSON = "application/json"


def rest_page() -> str:
    """Return the page: one table of routes per resource, then the fields of requests and answers."""
    document = json.loads(openapi_document())
    schemas: dict[str, Any] = document["components"]["schemas"]
    groups: dict[str, list[tuple[str, ...]]] = {}
    named = {"Problem"}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            request = _body(operation.get("requestBody", {}))
            answer = _body(operation["responses"].get("200", {}))
            named |= _references([request, answer])
            groups.setdefault(_group(path), []).append(
                (
                    code(f"{method.upper()} {path}"),
                    f"{operation['summary']} {_parameters(operation)}",
                    operation.get("x-scope", ""),
                    _type(request),
                    _type(answer),
                )
            )
    parts = [_HEAD]
    for title, rows in sorted(groups.items()):
        parts += [f"## {title}\n", table(("route", "purpose", "scope", "request", "answer"), rows)]
    parts += ["## Fields of requests and answers\n"]
    for name in sorted(_reachable(named, schemas)):
        parts.append(_schema(name, schemas[name]))
    return "\n".join(parts)


def _group(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("api", "v1")]
    if parts[1] == "views":
        return "Views of the page"
    return parts[1].removesuffix(".json").capitalize()


def _body(content: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a request or an answer; other content than JSON becomes its media type."""
    kinds = content.get("content", {})
    if _JSON in kinds:
        schema: dict[str, Any] = kinds[_JSON].get("schema", {})
        return schema
    return {"title": next(iter(kinds))} if kinds else {}


def _parameters(operation: dict[str, Any]) -> str:
    names = [each["name"] for each in operation["parameters"] if each["in"] != "path"]
    return f"Parameters: {', '.join(code(name) for name in names)}." if names else ""


def _type(schema: dict[str, Any]) -> str:
    """Return a schema as short text with links to named schemas."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(_type(each) for each in schema.get("anyOf") or schema["oneOf"])
    if "enum" in schema or "const" in schema:
        return " or ".join(code(json.dumps(each)) for each in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"{{text: {_type(schema['additionalProperties'])}}}"
    return str(kind or schema.get("title", ""))


def _anchor(name: str) -> str:
    return name.lower().replace("[", "").replace("]", "")


def _reachable(names: set[str], schemas: dict[str, Any]) -> set[str]:
    """Return the named schemas and all schemas that they refer to."""
    found, waiting = set[str](), set(names) & set(schemas)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= {each for each in _references(schemas[name]) if each not in found}
    return found


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"].rpartition("/")[2]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(_references(each) for each in value.values()))
    return set().union(*(_references(each) for each in value)) if isinstance(value, list) else set()


def _schema(name: str, schema: dict[str, Any]) -> str:
    parts = [f"### {name}\n"]
    if "description" in schema:
        parts.append(f"{schema['description'].split(chr(10) * 2)[0]}\n")
    fields = schema.get("properties", {})
    if not fields:
        return "\n".join([*parts, f"{_type(schema)}\n"])
    required = schema.get("required", ())
    rows = [
        (code(field), _type(each), "yes" if field in required else "", each.get("description", ""))
        for field, each in fields.items()
    ]
    return "\n".join([*parts, table(("field", "type", "required", "meaning"), rows)])
