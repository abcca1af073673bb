"""From the text of a cluster file to `ClusterFile`, or to all its mistakes with their lines.

YAML itself says too little: keys given twice are refused here, and what pydantic finds is put to the line it stands in.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
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
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as missing:
        raise ClusterFileError(
            f"{path}: no such file; infra/eksctl/cluster.yaml is one to begin with"
        ) from missing
    except (OSError, UnicodeDecodeError) as problem:
        raise ClusterFileError(f"{path}: cannot be read: {problem}") from problem
    return parse(text, str(path))


def parse(text: str, source: str) -> ClusterFile:
    """The cluster file of a text; `source` is named in messages."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        twice = list(_repeated(root, ()))
        given = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise ClusterFileError(f"{source}: is no YAML: {_one_line(problem)}") from problem
    if twice:
        raise ClusterFileError(
            "\n".join(f"{source}:{line}: {_path(place)}: given twice" for place, line in twice)
        )
    if not isinstance(given, dict):
        raise ClusterFileError(
            f"{source}: must be a mapping with name, region, kubernetes, controller, workers, images"
        )
    try:
        return ClusterFile.model_validate(given)
    except ValidationError as problem:
        mistakes = [_mistake(source, root, error) for error in problem.errors()]
        raise ClusterFileError("\n".join(mistakes)) from problem


def _mistake(source: str, root: yaml.Node | None, error: ErrorDetails) -> str:
    place = tuple(error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        known = _fields(place[:-1])
        close = difflib.get_close_matches(str(place[-1]), known, n=1, cutoff=0.6)
        message = (
            f"no such field; did you mean {close[0]}?"
            if close
            else f"no such field; there are {', '.join(known)}"
        )
    elif error["type"] == "missing":
        message = "is missing"
    elif error["type"] == "value_error":
        field, colon, rest = message.partition(": ")
        if colon and field in _fields(place):  # a check over several fields names the one to change
            place, message = (*place, field), rest
    elif error["type"] in ("greater_than_equal", "less_than_equal", "string_pattern_mismatch"):
        message = f"{message[0].lower()}{message[1:]}, not {error['input']!r}"
    else:
        message = message[0].lower() + message[1:]
    return f"{source}:{_line(root, place)}: {_path(place)}: {message}"


def _line(node: yaml.Node | None, place: Place) -> int:
    line = 1
    for step in place:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(step)]
            if not found:
                return line
            line, node = found[0][0].start_mark.line + 1, found[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def _repeated(node: yaml.Node | None, place: Place) -> list[tuple[Place, int]]:
    found: list[tuple[Place, int]] = []
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                found.append(((*place, name), key.start_mark.line + 1))
            seen.add(name)
            found += _repeated(value, (*place, name))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            found += _repeated(value, (*place, index))
    return found


def _path(place: Sequence[int | str]) -> str:
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".") or "the file"


def _fields(place: Place) -> list[str]:
    model: Any = ClusterFile
    for step in place:
        if isinstance(step, int):
            continue
        model = (
            _model(model.model_fields[step].annotation)
            if step in getattr(model, "model_fields", {})
            else None
        )
    return list(model.model_fields) if model is not None else []


def _model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (list, Union, types.UnionType, Annotated):
        return next(filter(None, map(_model, get_args(annotation))), None)
    return None


def _one_line(problem: object) -> str:
    return " ".join(str(problem).split())
