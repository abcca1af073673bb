"""A release of the chart of version 0.1.0, upgraded to this chart by Helm itself, on a stand-in for a cluster.

The stand-in refuses what an API server refuses: other values of fields of claims and StatefulSets that cannot change.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.deploy.chart.rendering import CHART, NAMESPACE, ROOT, Rendered, parse, run, template
from tests.deploy.cluster.objects import Json
from tests.deploy.cluster.release import Cluster

OLD = ROOT / "tests" / "compat" / "chart-0.1.0.tgz"


def kept(cluster: Cluster) -> dict[str, Any]:
    """What data, clients and running pods hang on: fixed fields, secrets, addresses, and which pods belong to what."""
    objects = cluster.objects

    def of(resource: str, field: str) -> dict[str, Json]:
        return {one["metadata"]["name"]: one[field] for one in objects.all(resource, NAMESPACE)}

    services = {
        name: {key: spec.get(key) for key in ("clusterIP", "selector", "ports")}
        for name, spec in of("services", "spec").items()
    }
    selectors = {name: spec["selector"] for name, spec in of("deployments", "spec").items()}
    return {
        "fixed": cluster.fixed(),
        "secrets": of("secrets", "data"),
        "services": services,
        "selectors": selectors,
    }


def without_releases(found: dict[str, Any]) -> dict[str, Any]:
    """Less Helm's own record of revisions."""
    secrets = {name: data for name, data in found["secrets"].items() if not name.startswith("sh.helm.")}
    return {**found, "secrets": secrets}


@pytest.mark.slow
def test_an_old_release_is_upgraded(cluster: Cluster) -> None:
    """Claims, secrets, services and selectors stay as they are; so do they when it is rolled back."""
    cluster.helm("install", chart=OLD)
    before = without_releases(kept(cluster))
    assert before["fixed"]
    cluster.helm("upgrade")
    assert without_releases(kept(cluster)) == before
    cluster.helm("rollback", "1")
    assert without_releases(kept(cluster)) == before


def test_every_old_value_is_still_taken() -> None:
    """A user's file of values may name all that the old chart had; the new schema refuses none of it."""
    values = yaml.safe_load(run("show", "values", str(OLD)))
    assert list(parse(template(CHART, json.dumps(values))))


def test_no_image_of_the_old_release_is_taken_for_a_new_one() -> None:
    """Commands in pods name modules, and those have moved. A node keeps the images that it has: under an old tag it
    would start the old one by the new command, and after a rollback a new one by the old command."""
    old, new = (Rendered(tuple(parse(template(chart, "{}")))) for chart in (OLD, CHART))
    before = {one["image"] for _, one in old.containers() if "cerebro" in one["image"]}
    assert before
    assert not before & {one["image"] for _, one in new.containers()}
