"""From the text of a cluster file to `ClusterFile`, or to all its mistakes with their lines.

YAML itself says too little: keys given twice are refused here, and what pydantic finds is put to the line it stands in.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cerebro.cloud.clusterfile import ClusterFile
from cerebro.errors import ClusterFileError

Place = tuple[int | str, ...]
"""Keys and indices from the top of the file to a field."""


def read(path: Path) -> ClusterFile:
    """The cluster file at a path.

    Raises:
        ClusterFileError: it cannot be read or has mistakes; the message has a line for each, with file, line and field.
    """
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError as missing:
        example = "infra/eksctl/cluster.yaml is one to begin with"
        raise ClusterFileError(f"{path}: no such file; {example}") from missing
    except (OSError, UnicodeDecodeError) as problem:
        raise ClusterFileError(f"{path}: cannot be read: {problem}") from problem


def parse(text: str, source: str) -> ClusterFile:
    """The cluster file of a text; `source` is named in messages."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        given = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise ClusterFileError(f"{source}: is no YAML: {' '.join(str(problem).split())}") from problem
    if not isinstance(given, dict):
        parts = "name, region, kubernetes, controller, workers, images"
        raise ClusterFileError(f"{source}: must be a mapping with {parts}")
    twice = [f"{source}:{line}: {_path(place)}: given twice" for place, line in _repeated(root, ())]
    if twice:
        raise ClusterFileError("\n".join(twice))
    try:
        return ClusterFile.model_validate(given)
    except ValidationError as problem:
        mistakes = [_mistake(source, root, error) for error in problem.errors()]
        raise ClusterFileError("\n".join(mistakes)) from problem


def _mistake(source: str, root: yaml.Node | None, error: ErrorDetails) -> str:
    place, message = tuple(error["loc"]), error["msg"]
    match error["type"]:
        case "extra_forbidden":
            known = _fields(place[:-1])
            close = difflib.get_close_matches(str(place[-1]), known, n=1, cutoff=0.6)
            message = "no such field; " + (
                f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            )
        case "missing":
            message = "is missing"
        case "value_error":
            message = message.removeprefix("Value error, ")
            field, colon, rest = message.partition(": ")
            if colon and field in _fields(place):  # a check over several fields names the one to change
                place, message = (*place, field), rest
        case kind:
            has_value = kind in ("greater_than_equal", "less_than_equal", "string_pattern_mismatch")
            message = message[0].lower() + message[1:] + (f", not {error['input']!r}" if has_value else "")
    return f"{source}:{_line(root, place)}: {_path(place)}: {message}"


def _children(node: yaml.Node | None) -> Iterator[tuple[int | str, int, yaml.Node]]:
    """Key or index, line, and value of what is in a node."""
    if isinstance(node, yaml.MappingNode):
        yield from ((str(key.value), key.start_mark.line + 1, value) for key, value in node.value)
    elif isinstance(node, yaml.SequenceNode):
        yield from ((index, value.start_mark.line + 1, value) for index, value in enumerate(node.value))


def _line(node: yaml.Node | None, place: Place) -> int:
    line = 1
    for step in place:
        found = next((child for child in _children(node) if child[0] == step), None)
        if found is None:
            break
        _, line, node = found
    return line


def _repeated(node: yaml.Node | None, place: Place) -> Iterator[tuple[Place, int]]:
    seen = set()
    for key, line, value in _children(node):
        if key in seen:
            yield (*place, key), line
        seen.add(key)
        yield from _repeated(value, (*place, key))


def _path(place: Place) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return text.removeprefix(".") or "the file"


def _fields(place: Place) -> list[str]:
    """The fields that may stand at a place."""
    schema = ClusterFile.model_json_schema()
    node: Any = schema
    for step in place:
        node = node.get("items" if isinstance(step, int) else "properties", {})
        node = node if isinstance(step, int) else node.get(step, {})
        node = schema["$defs"].get(node.get("$ref", "").rpartition("/")[2], node)
    return list(node.get("properties", {}))
