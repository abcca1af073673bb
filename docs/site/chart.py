"""Write the reference of the chart's values: types from `values.schema.json`, defaults and texts from `values.yaml`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from docs.site.pages import ROOT
from docs.site.tables import code, table

_CHART = ROOT / "deploy/helm/cerebro"
_HEAD = """\
# Values of the chart

Each table lists the values of one section of `values.yaml` with their defaults. `helm install` refuses other names and
types. [The chart](../deploy/helm/README.md) explains how to install it; the [file
itself](../deploy/helm/cerebro/values.yaml.md) has the same values.
"""


def chart_page() -> str:
    """Return the page, with one table per section."""
    schema = json.loads((_CHART / "values.schema.json").read_text())
    text = (_CHART / "values.yaml").read_text()
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    described = dict(_values(root, text.splitlines(), ""))
    names = [
        name for name in schema["properties"] if name in described
    ]  # without Helm's own, such as `global`
    plain = [name for name in names if not _is_section(name, described)]
    sections = {"General": plain} | {
        name: [each for each in described if each.startswith(f"{name}.")]
        for name in names
        if name not in plain
    }
    parts = [_HEAD]
    for title, members in sections.items():
        rows = [
            (code(name), _kind(_schema_of(schema, name.split("."))), *described[name])
            for name in members
            if not _is_section(name, described)
        ]
        intro = described.get(title, ("", ""))[1]
        parts += [
            f"## {title}\n",
            f"{intro}\n" if intro else "",
            table(("value", "type", "default", "meaning"), rows),
        ]
    return "\n".join(parts)


def _is_section(name: str, described: dict[str, tuple[str, str]]) -> bool:
    return any(each.startswith(f"{name}.") for each in described)


def _values(node: yaml.MappingNode, lines: list[str], prefix: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each value's dotted name, default and comment. A section's own default is empty."""
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        comment = _comment_before(lines, key.start_mark.line)
        if isinstance(value, yaml.MappingNode) and value.value:
            yield name, ("", comment)
            yield from _values(value, lines, f"{name}.")
        else:
            default = yaml.safe_load(yaml.serialize(value))
            yield name, (code(json.dumps(default)), comment)


def _comment_before(lines: list[str], line: int) -> str:
    """Return the comments directly above a key and behind it."""
    found = list[str]()
    above = line
    while above and re.match(r" *# (?!---)", lines[above - 1]):
        above -= 1
        found.insert(0, lines[above].strip().removeprefix("# "))
    behind = re.search(r"\s# (.*)$", lines[line])
    return " ".join([*found, *([behind[1]] if behind else [])])


def _schema_of(schema: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """Follow a path through properties and references; `{}` where the schema allows any name."""
    found = schema
    for part in path:
        found = _resolved(schema, found).get("properties", {}).get(part, {})
    return _resolved(schema, found)


def _resolved(schema: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in found:
        found = schema["definitions"][found["$ref"].rpartition("/")[2]]
    return found


def _kind(found: dict[str, Any]) -> str:
    """Return the allowed values or types as text."""
    if "enum" in found:
        return " or ".join(code(json.dumps(value)) for value in found["enum"])
    kinds = found.get("type", "any")
    text = kinds if isinstance(kinds, str) else " or ".join(kinds)
    if "minimum" in found:
        text += f", at least {found['minimum']}"
    if "maximum" in found:
        text += f", at most {found['maximum']}"
    return text
