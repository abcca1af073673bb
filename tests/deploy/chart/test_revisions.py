"""Helm installs, upgrades and rolls back a release on a stand-in cluster.

The stand-in refuses changes of immutable fields of claims and StatefulSets, as an API server does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.deploy.chart.rendering import NAMESPACE
from tests.deploy.cluster.objects import DEFAULT_CLASS
from tests.deploy.cluster.release import Cluster


def make_default(cluster: Cluster, name: str) -> None:
    """Change the default class, as an administrator would."""
    for one in cluster.objects.all("storageclasses"):
        chosen = "true" if one["metadata"]["name"] == name else "false"
        key = ("storageclasses", "", one["metadata"]["name"])
        cluster.objects.merge(key, {"metadata": {"annotations": {DEFAULT_CLASS: chosen}}})


BEGINNINGS: Mapping[str, Mapping[str, Any]] = {
    "the default class": {},
    "a class that is named": {"storage": {"className": "standard", "podClassName": "standard"}},
    "nothing may be looked at": {"storage": {"inspect": False, "accessMode": "ReadWriteOnce"}},
    "volumes made by hand": {"storage": {"className": "-", "podClassName": "-"}},
}
"""Origin of the class -> values of the first revision."""


@pytest.mark.slow
@pytest.mark.parametrize("first", BEGINNINGS)
def test_rollback_to_every_revision_is_possible(cluster: Cluster, first: str) -> None:
    """Also after a change of the default class: all revisions have the same immutable fields, so each can follow any
    other.
    """
    begin = BEGINNINGS[first]
    cluster.helm("install", values=begin)
    fixed = cluster.fixed()
    make_default(cluster, "standard")
    revisions: list[Mapping[str, Any]] = [
        {},
        {"worker": {"replicas": 3, "cores": 2}, "notebook": {"enabled": False}},
        {"tensorboard": {"enabled": False}, "storage": {**begin.get("storage", {}), "handOver": "always"}},
    ]
    for values in revisions:
        cluster.helm("upgrade", values={**begin, **values})
        assert cluster.fixed() == fixed
    for revision in (1, 3, 2):
        cluster.helm("rollback", str(revision))
        assert cluster.fixed() == fixed
    claims = cluster.objects.all("persistentvolumeclaims", NAMESPACE)
    written = {claim["spec"].get("storageClassName") for claim in claims}
    assert written == {{"a class that is named": "standard", "volumes made by hand": ""}.get(first, "fast")}
