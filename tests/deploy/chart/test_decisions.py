"""The chart's decisions about storage classes, secrets and sizes, without a cluster.

Templates separate the lookup of objects from the decision, and a small test chart calls the decision. An installation
on a real cluster tests the lookup.
"""

import base64
import json
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.deploy.chart.rendering import CHART, parse, template

LOCAL_PATH, EBS, EFS, NFS = "rancher.io/local-path", "ebs.csi.aws.com", "efs.csi.aws.com", "nfs.csi.k8s.io"
HOST_PATH, MINIKUBE = "kubernetes.io/host-path", "k8s.io/minikube-hostpath"

Conclude = Callable[[str, Sequence[Any]], list[Any]]


@pytest.fixture(scope="module")
def conclude(tmp_path_factory: pytest.TempPathFactory) -> Conclude:
    """Call a helper of the chart with each of several arguments."""
    chart = tmp_path_factory.mktemp("chart")
    (chart / "Chart.yaml").write_text("{apiVersion: v2, name: cerebro, version: 0.0.0}")
    (chart / "templates").mkdir()
    for name in ("_names.tpl", "_storage.tpl", "_auth.tpl", "worker/_parts.tpl"):
        shutil.copy(CHART / "templates" / name, chart / "templates" / name.replace("/", "-"))
    (chart / "templates" / "call.yaml").write_text(
        "results:\n{{ range .Values.cases }}- {{ include $.Values.helper . | quote }}\n{{ end }}"
    )

    def call(helper: str, cases: Sequence[Any]) -> list[Any]:
        (printed,) = parse(template(chart, json.dumps({"helper": helper, "cases": list(cases)})))
        return list(printed["results"])

    return call


def _case(
    *provisioners: str,
    nodes: int = 1,
    names: Sequence[str] = ("standard",),
    default: int | None = 0,
    chosen: str = "",
    mode: str = "auto",
    found: Any = None,
) -> dict[str, Any]:
    classes = [
        {"name": name, "provisioner": provisioner, "default": number == default}
        for number, (name, provisioner) in enumerate(zip(names, provisioners, strict=True))
    ]
    return {
        "cluster": {"classes": classes, "nodes": nodes} if nodes else {},
        "field": "storage.shared",
        "commonField": "storage.className",
        "class": chosen,
        "mode": mode,
        "found": found or {},
    }


def _decided(conclude: Conclude, *cases: dict[str, Any]) -> list[tuple[str, str]]:
    decisions = [json.loads(line) for line in conclude("cerebro.storage.decision", cases)]
    assert [decision["problem"] for decision in decisions] == [""] * len(cases)
    return [(decision["class"], decision["mode"]) for decision in decisions]


def _problem(conclude: Conclude, case: dict[str, Any]) -> str:
    (line,) = conclude("cerebro.storage.decision", [case])
    return str(json.loads(line)["problem"])


def test_one_node_needs_no_shared_class(conclude: Conclude) -> None:
    """On one node any class with ReadWriteOnce works; a class that supports several nodes keeps ReadWriteMany."""
    assert _decided(
        conclude, _case(LOCAL_PATH), _case(EBS), _case(HOST_PATH), _case("example.org/new"), _case(EFS)
    ) == [
        ("standard", "ReadWriteOnce"),
        ("standard", "ReadWriteOnce"),
        ("standard", "ReadWriteOnce"),
        ("standard", "ReadWriteOnce"),
        ("standard", "ReadWriteMany"),
    ]


def test_several_nodes_share_volumes(conclude: Conclude) -> None:
    """ReadWriteMany, of the default class or the chosen one."""
    names = ("gp3", "efs-sc")
    cases = (_case(NFS, nodes=3), _case(EBS, EFS, names=names, nodes=3, chosen="efs-sc"))
    assert _decided(conclude, *cases) == [("standard", "ReadWriteMany"), ("efs-sc", "ReadWriteMany")]


@pytest.mark.parametrize(
    "provisioner", [LOCAL_PATH, EBS, "kubernetes.io/aws-ebs", "pd.csi.storage.gke.io", "disk.csi.azure.com"]
)
def test_several_nodes_refuse_a_class_for_one(conclude: Conclude, provisioner: str) -> None:
    """The error names the field, the class, its provisioner and the fix."""
    said = _problem(conclude, _case(provisioner, nodes=2))
    assert "storage.shared.accessMode" in said
    assert provisioner in said
    assert "set storage.className to a class that many nodes can mount" in said


@pytest.mark.parametrize("provisioner", [HOST_PATH, MINIKUBE])
def test_folders_of_one_node_are_not_shared_between_several(conclude: Conclude, provisioner: str) -> None:
    """Such a class accepts every mode, but each node gets its own folder; on one node any mode works."""
    assert "storage.shared.accessMode" in _problem(conclude, _case(provisioner, nodes=2))
    assert _decided(conclude, _case(provisioner, mode="ReadWriteMany")) == [("standard", "ReadWriteMany")]


def test_missing_classes_are_named(conclude: Conclude) -> None:
    """No default class, no class at all, or an unknown class."""
    assert "set storage.className to one of a, b" in _problem(
        conclude, _case(EBS, EBS, names=("a", "b"), default=None)
    )
    assert "no StorageClass" in _problem(conclude, _case(names=()))
    assert 'is "gp4", which the cluster does not have' in _problem(
        conclude, _case(EBS, names=("gp3",), chosen="gp4")
    )


def test_an_existing_claim_keeps_its_class_and_mode(conclude: Conclude) -> None:
    """After a second node or a new default class, class and mode stay, since they are immutable."""
    found = {"spec": {"storageClassName": "standard", "accessModes": ["ReadWriteOnce"]}}
    cases = (_case(LOCAL_PATH, nodes=4, found=found), _case(EBS, names=("gp3",), found=found))
    assert _decided(conclude, *cases) == [("standard", "ReadWriteOnce")] * 2


def test_a_claim_keeps_the_class_as_written(conclude: Conclude) -> None:
    """A claim keeps the class as written, which may differ from the class it got."""
    found = {
        "metadata": {"annotations": {"cerebro/class": ""}},
        "spec": {"storageClassName": "standard", "accessModes": ["ReadWriteOnce"]},
    }
    by_hand = {
        "metadata": {"annotations": {"cerebro/class": "-"}},
        "spec": {"storageClassName": "", "accessModes": ["ReadWriteOnce"]},
    }
    assert _decided(conclude, _case(EBS, found=found), _case(EBS, found=by_hand)) == [
        ("", "ReadWriteOnce"),
        ("-", "ReadWriteOnce"),
    ]


def test_secrets_that_exist_are_kept(conclude: Conclude) -> None:
    """Existing keys stay; a missing key is generated."""
    kept = {"token": base64.b64encode(b"mine").decode(), "redis-password": base64.b64encode(b"too").decode()}
    whole, half, none = conclude(
        "cerebro.auth.data", [{"data": kept}, {"data": {"token": kept["token"]}}, {"data": {}}]
    )
    assert f'token: "{kept["token"]}"' in whole
    assert f'redis-password: "{kept["redis-password"]}"' in whole
    assert f'token: "{kept["token"]}"' in half
    assert kept["redis-password"] not in half
    assert kept["token"] not in none


def _old_set(*owners: dict[str, Any]) -> dict[str, Any]:
    """A worker set by a chart before 0.3 with 2 workers, scaled to 6 since."""
    metadata = {"annotations": {"cerebro/replicas": "2"}, "managedFields": list(owners)}
    return {"metadata": metadata, "spec": {"replicas": 6}}


def test_manifests_omit_the_number_of_workers_unless_helm_owns_it(conclude: Conclude) -> None:
    """Without the number that an earlier Helm release wrote, Kubernetes would reset it to 1."""
    replicas: dict[str, Any] = {"f:spec": {"f:replicas": {}}}
    helm4 = {"manager": "helm", "operation": "Apply", "fieldsV1": replicas}
    helm3 = {"manager": "helm", "operation": "Update", "fieldsV1": replicas}
    kubectl = {"manager": "kubectl", "operation": "Update", "subresource": "scale", "fieldsV1": replicas}
    template = {"manager": "helm", "operation": "Apply", "fieldsV1": {"f:spec": {"f:template": {}}}}
    new = {"metadata": {"managedFields": [template, kubectl]}, "spec": {"replicas": 6}}
    cases = [{"set": each} for each in (
        {}, new, _old_set(helm4), _old_set(template, kubectl), _old_set(helm3), _old_set(helm3, kubectl),
    )]  # fmt: skip
    assert conclude("cerebro.worker.replicas", cases) == ["", "", "6", "", "6", "6"]


def test_folders_of_root_are_handed_over(conclude: Conclude) -> None:
    """By default only for the one provisioner that makes folders for root; never or always on request."""

    def case(hand_over: str, provisioner: str) -> dict[str, Any]:
        return {
            "root": {"Values": {"storage": {"handOver": hand_over}}},
            "decision": {"provisioner": provisioner},
        }

    cases = [case("auto", HOST_PATH), case("auto", LOCAL_PATH), case("always", EBS), case("never", HOST_PATH)]
    assert conclude("cerebro.storage.isRoots", cases) == ["yes", "", "yes", ""]
