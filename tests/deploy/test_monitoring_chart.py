"""deploy/helm/monitoring: dependencies, each with a switch. The charts themselves are not fetched here: stand-ins of
the same names take their places, and show what would reach them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from cerebro.runtime.logs import FIELDS
from tests.deploy.chart.rendering import ROOT, HelmError, parse, run

CHART = ROOT / "deploy" / "helm" / "monitoring"
NAMES = ("kube-prometheus-stack", "loki", "alloy")


def metadata() -> Any:
    return yaml.safe_load((CHART / "Chart.yaml").read_text())


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart, its dependencies replaced by charts that print their values."""
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


def rendered(chart: Path, *switches: str) -> dict[str, Any]:
    """Dependency -> the values that reach it."""
    options = [option for switch in switches for option in ("--set", switch)]
    return {one["name"]: one["values"] for one in parse(run("template", "monitoring", str(chart), *options))}


def test_each_part_can_be_left_out(chart: Path) -> None:
    """All by default; any one by its value."""
    assert rendered(chart).keys() == set(NAMES)
    for name in NAMES:
        assert rendered(chart, f"{name}.enabled=false").keys() == set(NAMES) - {name}


def test_every_dependency_is_of_one_version() -> None:
    """What was tried is what is installed, today and in a year: no range."""
    for dependency in metadata()["dependencies"]:
        assert re.fullmatch(r"\d+\.\d+\.\d+", dependency["version"]), dependency["name"]


def test_helm_insists_on_what_is_listed(tmp_path: Path) -> None:
    """Also where all is switched off. That is why these are no dependencies of Cerebro's own chart; should Helm change
    its mind, they can be."""
    shutil.copytree(CHART, tmp_path / "monitoring")
    off = [option for name in NAMES for option in ("--set", f"{name}.enabled=false")]
    with pytest.raises(HelmError, match="missing in charts/ directory"):
        run("template", "monitoring", str(tmp_path / "monitoring"), *off)
    assert "dependencies" not in yaml.safe_load((ROOT / "deploy/helm/cerebro/Chart.yaml").read_text())


def test_prometheus_and_grafana_look_into_every_namespace(chart: Path) -> None:
    """Else they would not find what Cerebro's chart makes in its own."""
    values = rendered(chart)["kube-prometheus-stack"]
    found = values["prometheus"]["prometheusSpec"]
    assert found["serviceMonitorSelectorNilUsesHelmValues"] is found["ruleSelectorNilUsesHelmValues"] is False
    assert values["grafana"]["sidecar"]["dashboards"]["searchNamespace"] == "ALL"


def test_labels_of_streams_are_few(chart: Path) -> None:
    """What Loki makes a stream of is bounded by the program: no name of a user's."""
    pipeline = rendered(chart)["alloy"]["alloy"]["configMap"]["content"]
    (labels,) = re.findall(r"stage\.labels {\s*values = {(.*?)}", pipeline)
    assert set(re.findall(r"(\w+) =", labels)) == {"service", "level"}
    targets = set(re.findall(r'target_label  = "(\w+)"', pipeline))
    assert targets == {"namespace", "pod", "container"}
    assert not targets & set(FIELDS)
    assert pipeline.count("{") == pipeline.count("}")


def test_prometheus_is_the_version_that_clusters_on_aws_get() -> None:
    """One version in the repository."""
    releases = yaml.safe_load((ROOT / "cerebro" / "cloud" / "data" / "releases.yaml").read_text())
    chart = releases["kube-prometheus-stack"]["chart"]
    wanted = str(chart[chart.index("--version") + 1])
    assert metadata()["dependencies"][0]["version"] == wanted
