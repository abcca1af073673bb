"""What Helm and the chart make of a cluster as they find it: on the stand-in, installed and changed for real."""

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
    """The namespace admits no pod that begins as root, and the class `slow` makes folders for root alone."""
    cluster.objects.create(("namespaces", "", NAMESPACE), namespace("restricted"))
    roots = storage_class("slow", is_default=False) | {"provisioner": "kubernetes.io/host-path"}
    cluster.objects.create(("storageclasses", "", "slow"), roots)
    return cluster


def test_volumes_of_root_are_refused_where_no_pod_may_begin_as_root(restricted: Cluster) -> None:
    """Before anything is installed, with the ways out; each of them is one."""
    slow = {"storage": {"className": "slow", "podClassName": "slow"}}
    with pytest.raises(HelmError) as refused:
        restricted.helm("install", values=slow)
    said = str(refused.value)
    assert f"namespace {NAMESPACE} enforces the Pod Security profile `restricted`" in said
    assert "storage.shared, worker.shards, redis.storage belong to root" in said
    for way in ("storage.className", "storage.handOver=never", f"{ENFORCE}=baseline"):
        assert way in said
    assert not restricted.objects.all("statefulsets"), "nothing was installed"
    restricted.helm("install", values={"storage": {**slow["storage"], "handOver": "never"}})


@pytest.mark.parametrize("way", ["another class", "another profile"])
def test_other_classes_and_profiles_are_not_refused(restricted: Cluster, way: str) -> None:
    """The check is about both together."""
    if way == "another profile":
        restricted.objects.replace(("namespaces", "", NAMESPACE), namespace("baseline"))
        restricted.helm("install", values={"storage": {"className": "slow", "podClassName": "slow"}})
    else:
        restricted.helm("install")
    assert restricted.objects.get(WORKERS)


@pytest.mark.slow
def test_a_scale_holds_and_is_told_and_another_number_says_what_is_in_its_way(cluster: Cluster) -> None:
    """`cerebro scale` stays over an upgrade, and NOTES count as many; where another number is asked for, Helm would not
    overrule whoever scaled, so the chart says who that is and what to do, which then works."""
    assert "2 workers, release" in cluster.helm("install")
    cluster.objects.scale(WORKERS, 6, "cerebro-controller")
    assert "6 workers (scaled since worker.replicas=2)" in cluster.helm("upgrade")
    assert cluster.objects.get(WORKERS)["spec"]["replicas"] == 6
    with pytest.raises(HelmError) as refused:
        cluster.helm("upgrade", values={"worker": {"replicas": 4}})
    said = str(refused.value)
    assert "worker.replicas is 4, and cerebro-controller has made it 6 since it was 2" in said
    assert "scale statefulset/cerebro-worker --replicas=4" in said
    cluster.objects.scale(WORKERS, 4, "kubectl")
    assert "4 workers, release" in cluster.helm("upgrade", values={"worker": {"replicas": 4}})
    assert cluster.objects.get(WORKERS)["spec"]["replicas"] == 4


@pytest.mark.slow
def test_another_number_wins_where_nobody_has_scaled(cluster: Cluster) -> None:
    """Up and down."""
    cluster.helm("install")
    for replicas in (4, 1):
        notes = cluster.helm("upgrade", values={"worker": {"replicas": replicas}})
        assert f"{replicas} worker{'s' if replicas > 1 else ''}, release" in notes
        assert cluster.objects.get(WORKERS)["spec"]["replicas"] == replicas
