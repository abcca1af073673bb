"""Every rendered object is valid for Kubernetes, for all sets of values."""

import functools
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils as library

from tests.deploy.chart.matrix import VALUES
from tests.deploy.chart.rendering import CHART, ROOT, Object, render, run

VERSIONS = list(dict.fromkeys(map(library.major_minor, library.all_versions())))[-3:]
"""The newest three minor versions of Kubernetes with installed schemas."""


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_passes_the_strict_schema_of_kubernetes(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No unknown field and no wrong type in the whole matrix, for three minor versions."""
    # The library would read its files, several MB, again for every object.
    monkeypatch.setattr(library, "schema_contents", functools.cache(library.schema_contents))
    objects: dict[str, Object] = {}
    for name in VALUES:
        objects |= {json.dumps(one, sort_keys=True): one for one in render(name).objects}
    # Objects of the Prometheus operator are tested in test_monitoring.
    for one in (
        one for one in objects.values() if not one["apiVersion"].startswith("monitoring.coreos.com/")
    ):
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize(
    "values", [pytest.param(name, marks=[] if name == "many" else [pytest.mark.slow]) for name in VALUES]
)
def test_helm_lint_passes(values: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(VALUES[values]))
    assert "0 chart(s) failed" in run("lint", "--strict", str(CHART), "--values", str(file))


def test_the_chart_has_the_version_of_the_project() -> None:
    """Chart, images and package share one release."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def _paths(values: Any, at: str = "") -> set[str]:
    if not isinstance(values, dict) or not values:
        return {at}
    return {path for key, below in values.items() for path in _paths(below, f"{at}/{key}")}


def _schema_paths(schema: Any, definitions: Any, at: str = "") -> set[str]:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if not schema.get("properties"):
        return {at}
    return {
        path
        for key, below in schema["properties"].items()
        for path in _schema_paths(below, definitions, f"{at}/{key}")
    }


def test_values_and_schema_have_the_same_fields() -> None:
    """Every field has a default in values.yaml and an entry in the schema."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    allowed = _schema_paths(schema, schema["definitions"])
    known = _paths(values)
    open_ended = re.compile(r"^(/global|.*/(affinity|requests|limits)(/.*)?)$")
    assert {p for p in allowed - known if not open_ended.match(p)} == set()
    assert {p for p in known - allowed if not open_ended.match(p)} == set()


def test_every_object_of_the_schema_is_closed() -> None:
    """No level accepts unknown fields, except objects that Kubernetes itself validates."""

    def objects(schema: Any, at: str) -> None:
        if isinstance(schema, dict):
            if "properties" in schema and schema.get("type") == "object":
                assert schema.get("additionalProperties") is False, at
            for key, below in schema.items():
                objects(below, f"{at}/{key}")

    objects(json.loads((CHART / "values.schema.json").read_text()), "")


def test_every_value_is_used() -> None:
    """Each value's name appears in a template."""
    text = "\n".join(path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    unused = {path for path in _paths(values) if not re.search(rf"\b{path.split('/')[-1]}\b", text)}
    assert {path for path in unused if not re.match(r".*/(requests|limits)/", path)} == set()
