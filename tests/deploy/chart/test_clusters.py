"""Helm and the chart on differently configured stand-in clusters."""

from __future__ import annotations

import pytest

from tests.deploy.chart.rendering import NAMESPACE, HelmError
from tests.deploy.cluster.objects import Json
from tests.deploy.cluster.release import Cluster, storage_class

WORKERS = ("statefulsets", NAMESPACE, "cerebro-worker")
ENFORCE = "pod-security.kubernetes.io/enforce"


def namespace(profile: str) -> Json:
    metadata = {"name": NAMESPACE, "labels": {ENFORCE: profile}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


@pytest.fixture
def restricted(cluster: Cluster) -> Cluster:
    """A namespace that admits no root pods, and a storage class `slow` with folders owned by root."""
    cluster.objects.create(("namespaces", "", NAMESPACE), namespace("restricted"))
    roots = storage_class("slow", is_default=False) | {"provisioner": "kubernetes.io/host-path"}
    cluster.objects.create(("storageclasses", "", "slow"), roots)
    return cluster


def test_volumes_of_root_are_refused_where_no_pod_may_run_as_root(restricted: Cluster) -> None:
    """The refusal comes before the installation and lists the alternatives; each alternative works."""
    slow = {"storage": {"className": "slow", "podClassName": "slow"}}
    with pytest.raises(HelmError) as refused:
        restricted.helm("install", values=slow)
    said = str(refused.value)
    assert f"namespace {NAMESPACE} enforces the Pod Security profile `restricted`" in said
    assert "storage.shared, worker.shards, redis.storage belong to root" in said
    for setting in ("storage.className", "storage.handOver=never", f"{ENFORCE}=baseline"):
        assert setting in said
    assert not restricted.objects.all("statefulsets"), "nothing was installed"
    restricted.helm("install", values={"storage": {**slow["storage"], "handOver": "never"}})


@pytest.mark.slow
def test_helm_never_writes_the_number_of_workers(cluster: Cluster) -> None:
    """After a scale, upgrades and rollbacks keep the current number, also with another value."""
    cluster.helm("install")
    assert "replicas" not in cluster.objects.get(WORKERS)["spec"]
    cluster.objects.scale(WORKERS, 2, "cerebro-controller")
    cluster.objects.scale(WORKERS, 6, "kubectl")
    assert "6 workers (worker.replicas=2" in cluster.helm("upgrade")
    cluster.helm("upgrade", values={"worker": {"replicas": 4}})
    for revision in ("1", "3"):
        cluster.helm("rollback", revision)
        assert cluster.objects.get(WORKERS)["spec"]["replicas"] == 6
