"""Read users' YAML files strictly into a pydantic model. Errors name line and field.

`cerebro.client.experiment_file` reads experiment files with it, and `cerebro.cloud.clusterfile` cluster files; they
define the models. Unknown fields and duplicate keys are errors. ``1e-3`` is a number, as in YAML 1.2 but not in PyYAML.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from cerebro.errors import CerebroError

Place = tuple[int | str, ...]
"""Keys and indices from the top of the file to a field."""


class Part(BaseModel):
    """Base class of a file's sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


_Model = TypeVar("_Model", bound=Part)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the floats of YAML 1.2."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def read(path: Path, model: type[_Model], error: type[CerebroError], *, example: str) -> _Model:
    """Read and validate a file.

    Args:
        error: exception class to raise.
        example: says where an example file is.

    Raises:
        error: the file cannot be read or has errors; the message has a line for each, with file, line and field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"{path}: cannot be read: {problem}; {example}") from problem
    return parse(text, str(path), model, error)


def parse(text: str, source: str, model: type[_Model], error: type[CerebroError]) -> _Model:
    """Validate the text of a file, as `read` does; `source` is its name in messages."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        places = list(_places(root, ()))  # before the mapping is built, which merges `<<` into the other keys
        document = None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, ValueError) as problem:  # ValueError: such as an impossible date
        raise error(f"{source}: is no YAML: {' '.join(str(problem).split())}") from problem
    except RecursionError as problem:
        raise error(f"{source}: is nested too deep, or contains itself") from problem
    if not isinstance(document, dict):
        needed = [name for name, field in model.model_fields.items() if field.is_required()]
        raise error(f"{source}: must be a mapping with {', '.join(needed)}")
    lines: dict[Place, int] = {}
    for place, line in places:
        if place in lines:
            raise error(f"{source}:{line}: {_path(place)}: given twice")
        lines[place] = line
    try:
        return model.model_validate(document)
    except RecursionError as problem:
        raise error(f"{source}: contains itself") from problem
    except ValidationError as problem:
        mistakes = [_mistake(source, lines, found, model) for found in problem.errors()]
        raise error("\n".join(mistakes)) from problem


def located_message(text: str, source: str, place: Place, problem: object) -> str:
    """Return a message about a field of a parsed text, with `source` and the field's line."""
    root = yaml.compose(text, Loader=_Loader)
    lines = dict(_places(root, ()))
    return f"{source}:{_line(lines, place)}: {_path(place)}: {problem}"


def _line(lines: dict[Place, int], place: Place) -> int:
    """Return the line of a field, or of its nearest parent in the file."""
    known_parts = (place[:length] for length in range(len(place), 0, -1))
    return next((lines[part] for part in known_parts if part in lines), 1)


def _places(node: yaml.Node | None, place: Place) -> Iterator[tuple[Place, int]]:
    """Yield each field with its line, in the order of the file."""
    children: list[tuple[Any, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(index, value, value) for index, value in enumerate(node.value)]
    for step, begin, value in children:
        yield (*place, step), begin.start_mark.line + 1
        yield from _places(value, (*place, step))


def _mistake(source: str, lines: dict[Place, int], error: ErrorDetails, model: type[Part]) -> str:
    place, message = tuple(error["loc"]), error["msg"]
    match error["type"]:
        case "extra_forbidden":
            known = _fields(place[:-1], model)
            close = difflib.get_close_matches(str(place[-1]), known, n=1, cutoff=0.6)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            message = f"no such field; {hint}"
        case "missing":
            message = "is missing"
        case "value_error":
            message = message.removeprefix("Value error, ")
        case kind:
            has_value = kind in ("greater_than_equal", "less_than_equal", "string_pattern_mismatch")
            message = message[0].lower() + message[1:] + (f", not {error['input']!r}" if has_value else "")
    return f"{source}:{_line(lines, place)}: {_path(place)}: {message}"


def _path(place: Place) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return text.removeprefix(".") or "the file"


def _fields(place: Place, model: type[Part]) -> list[str]:
    schema = model.model_json_schema()
    node: Any = schema
    for step in place:
        node = node.get("items" if isinstance(step, int) else "properties", {})
        node = node if isinstance(step, int) else node.get(step, {})
        node = next((each for each in node.get("anyOf", ()) if "$ref" in each), node)
        node = schema["$defs"].get(node.get("$ref", "").rpartition("/")[2], node)
    return list(node.get("properties", {}))
