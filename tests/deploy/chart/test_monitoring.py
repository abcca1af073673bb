"""Monitoring objects for Prometheus, Grafana and Loki appear only on request and use only existing metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.chart.matrix import VALUES
from tests.deploy.chart.promql import Query, parse
from tests.deploy.chart.rendering import ROOT, Object, component, render
from tests.runtime.exposed import families, registries

DOCUMENT = (ROOT / "docs" / "monitoring.md").read_text()
OPERATOR = "monitoring.coreos.com/v1"
FROM_SCRAPING = {"namespace", "service", "pod", "container"}
"""Labels that Prometheus adds to scraped metrics."""


def _kinds(values: str) -> list[str]:
    kinds = [one["kind"] for one in render(values).objects if one["apiVersion"] == OPERATOR]
    return sorted(kinds + [one["kind"] for one in render(values).of("ConfigMap")])


def _rules() -> list[Any]:
    (rule,) = render("monitoring").of("PrometheusRule")
    (group,) = rule["spec"]["groups"]
    return list(group["rules"])


def _dashboard() -> Any:
    (config_map,) = render("monitoring").of("ConfigMap")
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    return json.loads(config_map["data"]["cerebro.json"])


def _dashboard_queries() -> Iterator[str]:
    for panel in _dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def test_monitoring_objects_exist_only_on_request() -> None:
    """A cluster without the operator lacks these kinds."""
    assert [name for name in VALUES if _kinds(name)] == ["monitoring"]
    assert _kinds("monitoring") == ["ConfigMap", "PrometheusRule", "ServiceMonitor"]
    assert not [
        one for one in render("defaults").of("Service") if one["metadata"]["name"].endswith("-metrics")
    ]


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Map every metric name that Prometheus scrapes to its labels."""
    found: dict[str, set[str]] = {"process_resident_memory_bytes": set()}
    for registry in registries(tmp_path_factory.mktemp("volumes")).values():
        for one in families(registry):
            suffixes = ("_bucket", "_count", "_sum") if one.kind == "histogram" else ("",)
            for suffix in suffixes:
                found[one.name + suffix] = {*one.labels, *(["le"] if suffix == "_bucket" else [])}
    return found


def _check(query: Query, exposed: dict[str, set[str]]) -> None:
    assert query.metrics <= exposed.keys()
    for metric, label, _, _ in query.matchers:
        assert label in exposed[metric] | FROM_SCRAPING, (metric, label)
    known = set[str]().union(*(exposed[metric] for metric in query.metrics))
    assert query.grouped <= known | FROM_SCRAPING


def test_alerts_and_panels_query_existing_metrics(exposed: dict[str, set[str]]) -> None:
    """Each query is valid PromQL with existing metrics and labels."""
    queries = [rule["expr"] for rule in _rules()]
    queries += [query.replace("$namespace", "lab") for query in _dashboard_queries()]
    assert len(queries) > 30
    for text in queries:
        _check(parse(text), exposed)


def test_every_alert_links_to_its_runbook() -> None:
    """Summary, description, severity, and a link to a heading with its name in the document."""
    headings = {
        line.removeprefix("### ").lower() for line in DOCUMENT.splitlines() if line.startswith("### ")
    }
    names = [rule["alert"] for rule in _rules()]
    assert len(names) == len(set(names)) == 9
    for rule in _rules():
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (path, anchor in headings) == ("docs/monitoring.md", True), anchor
        # Only Prometheus' placeholders remain; Helm would have replaced its own.
        for braces in re.findall(r"{{.*?}}", rule["annotations"]["description"]):
            assert re.fullmatch(r"{{ \$(value|labels\.\w+)( \| \w+)? }}", braces), braces


def test_alerts_select_only_this_release(exposed: dict[str, set[str]]) -> None:
    """Each selector has the namespace and the services of this release."""
    services = {one["metadata"]["name"] for one in _scraped()}
    for rule in _rules():
        query = parse(rule["expr"])
        for metric in query.metrics:
            matchers = {
                (label, operator): value for m, label, operator, value in query.matchers if m == metric
            }
            assert matchers["namespace", "="] == "lab"
            assert all(re.fullmatch(matchers["service", "=~"], name) for name in services)


def _scraped() -> list[Object]:
    (monitor,) = render("monitoring").of("ServiceMonitor")
    labels = monitor["spec"]["selector"]["matchLabels"].items()
    assert monitor["spec"]["namespaceSelector"]["matchNames"] == ["lab"]
    return [one for one in render("monitoring").of("Service") if labels <= one["metadata"]["labels"].items()]


def test_prometheus_finds_each_port_that_serves_metrics() -> None:
    """The monitor's endpoints, the services and the containers' ports agree by name and number."""
    rendered = render("monitoring")
    (monitor,) = rendered.of("ServiceMonitor")
    endpoints = {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}
    found = {}
    for service in _scraped():
        pod = rendered.pod(component(service))
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        ports = {
            port["name"]: (port["containerPort"], container)
            for container in pod["spec"]["containers"]
            for port in container["ports"]
        }
        for port in service["spec"]["ports"]:
            number, container = ports[port["targetPort"]]
            bind = next(e["value"] for e in container["env"] if e["name"] == "CEREBRO_HEALTH_BIND")
            assert (port["name"] in endpoints, number, bind) == (True, port["port"], f"[::]:{number}")
            found[f"{component(service)}/{container['name']}"] = number
    assert found == {
        "controller/controller": 7071,
        "dispatcher/dispatcher": 7074,
        "kvs-api/kvs-api": 7075,
        "worker/worker": 7072,
        "worker/etl": 7073,
    }
