"""deploy/helm/monitoring: dependencies, each with a switch.

The tests replace the dependencies by stand-in charts that print their values, so nothing is downloaded.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart.rendering import ROOT

CHART = ROOT / "deploy" / "helm" / "monitoring"


def metadata() -> Any:
    return yaml.safe_load((CHART / "Chart.yaml").read_text())


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart, with dependencies replaced by charts that print their values."""
    root = tmp_path_factory.mktemp("chart") / "monitoring"
    shutil.copytree(CHART, root)
    for dependency in metadata()["dependencies"]:
        folder = root / "charts" / dependency["name"]
        (folder / "templates").mkdir(parents=True)
        version = dependency["version"]
        (folder / "Chart.yaml").write_text(
            f"{{apiVersion: v2, name: {dependency['name']}, version: {version}}}"
        )
        (folder / "templates" / "values.yaml").write_text(
            "name: {{ .Chart.Name }}\nvalues: {{ toJson .Values }}\n"
        )
    return root


def test_every_dependency_has_an_exact_version() -> None:
    """No version ranges, so an installation in a year equals the tested one."""
    for dependency in metadata()["dependencies"]:
        assert re.fullmatch(r"\d+\.\d+\.\d+", dependency["version"]), dependency["name"]
