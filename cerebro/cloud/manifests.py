"""What goes into the cluster, as values: storage classes and the values of charts. Pure.

`Fingerprinted` things carry a hash of what they were made from, so that a later run sees from the cluster itself
whether they are as the file now wants them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.eksctl_config import GPU_RESOURCE
from cerebro.cloud.names import (
    CLUSTER_TAG,
    CONTROL_ROLE,
    FINGERPRINT,
    ROLE_LABEL,
    SHARD_CLASS,
    SHARED_CLASS,
    WORKER_ROLE,
)

USER_ID = 1000
"""Of the containers; EFS's access points give every file to it."""

WORKER_TOLERATION = {"key": ROLE_LABEL, "operator": "Equal", "value": WORKER_ROLE, "effect": "NoSchedule"}
_GPU_TOLERATION = {"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}


def fingerprint(*parts: object) -> str:
    """Of anything JSON can hold; the same for equal parts, whatever the order of their keys."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def chart_fingerprint(chart: Path) -> str:
    """Of a chart's content: a folder's files and their names, or an archive's bytes; empty if there is none."""
    if not chart.exists():
        return ""
    digest = hashlib.sha256()
    files = sorted(path for path in chart.rglob("*") if path.is_file()) if chart.is_dir() else [chart]
    for path in files:
        digest.update(str(path.relative_to(chart)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def storage_classes(file: ClusterFile, file_system: str) -> list[dict[str, Any]]:
    """A class for what all share (EFS) and one for the disks of single pods (EBS)."""
    return [
        _class(
            SHARED_CLASS,
            "efs.csi.aws.com",
            {
                "provisioningMode": "efs-ap",  # an access point per claim: a folder of its own, one owner
                "fileSystemId": file_system,
                "directoryPerms": "770",
                "uid": str(USER_ID),
                "gid": str(USER_ID),
                "basePath": "/cerebro",
                "subPathPattern": "${.PVC.namespace}/${.PVC.name}",
                "ensureUniqueDirectory": "false",  # the same claim, made again, finds its files
            },
            {"volumeBindingMode": "Immediate", "mountOptions": ["tls"]},
        ),
        _class(
            SHARD_CLASS,
            "ebs.csi.aws.com",
            {
                "type": "gp3",
                "encrypted": "true",
                "csi.storage.k8s.io/fstype": "ext4",
                "tagSpecification_1": f"{CLUSTER_TAG}={file.name}",  # by which a deletion finds them again
            },
            {"volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": True},
            is_default=True,
        ),
    ]


def _class(
    name: str,
    provisioner: str,
    parameters: Mapping[str, str],
    rest: Mapping[str, Any],
    *,
    is_default: bool = False,
) -> dict[str, Any]:
    annotations = {FINGERPRINT: fingerprint(provisioner, dict(parameters), dict(rest))}
    if is_default:
        annotations["storageclass.kubernetes.io/is-default-class"] = "true"
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": annotations},
        "provisioner": provisioner,
        "parameters": dict(parameters),
        "reclaimPolicy": "Delete",
        **rest,
    }


def platform_values(file: ClusterFile) -> dict[str, Any]:
    """Of the chart deploy/helm/cerebro, the file's own overrides laid over them."""
    images: dict[str, Any] = {"registry": file.images.registry, "worker": {"cuda": file.gpus > 0}}
    if file.images.tag is not None:
        images["tag"] = file.images.tag
    made: dict[str, Any] = {
        "images": images,
        "objectStore": {"region": file.region},
        "storage": {
            "className": SHARED_CLASS,
            "podClassName": SHARD_CLASS,
            "accessMode": "ReadWriteMany",
        },
        "controlPlane": {"nodeSelector": {ROLE_LABEL: CONTROL_ROLE}},
        "worker": {
            "replicas": file.num_workers,
            "gpus": file.gpus,
            "cores": "node",  # each has one of its own, see below
            "nodeSelector": {ROLE_LABEL: WORKER_ROLE},
            "tolerations": [WORKER_TOLERATION, *([_GPU_TOLERATION] if file.gpus else [])],
            "shards": {"size": f"{file.storage.shards_gib}Gi"},
            # One worker per node, as the file counts them.
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "DoNotSchedule",
                }
            ],
        },
    }
    if file.install.monitoring:
        made["monitoring"] = {part: {"enabled": True} for part in ("serviceMonitor", "rules", "dashboard")}
    return overlaid(made, file.install.chart.values)


def gpu_plugin_values() -> dict[str, Any]:
    """Of NVIDIA's device plugin."""
    return {"tolerations": [_GPU_TOLERATION, WORKER_TOLERATION]}


def monitoring_values(file: ClusterFile) -> dict[str, Any]:
    """Of kube-prometheus-stack: on the control node, with a disk, and without what EKS hides from it."""
    at_control = {"nodeSelector": {ROLE_LABEL: CONTROL_ROLE}}
    disk = {"spec": {"storageClassName": SHARD_CLASS, "resources": {"requests": {"storage": "20Gi"}}}}
    hidden = ("kubeControllerManager", "kubeScheduler", "kubeEtcd")
    return {
        **{part: {"enabled": False} for part in hidden},
        "alertmanager": {"alertmanagerSpec": at_control},
        # Dashboards, monitors and rules are where the platform is, in its own namespace and release.
        "grafana": {**at_control, "sidecar": {"dashboards": {"searchNamespace": "ALL"}}},
        "kube-state-metrics": at_control,
        "prometheusOperator": at_control,
        "prometheus": {
            "prometheusSpec": {
                **at_control,
                "serviceMonitorSelectorNilUsesHelmValues": False,
                "ruleSelectorNilUsesHelmValues": False,
                "retention": "7d",
                "externalLabels": {"cluster": file.name},
                "storageSpec": {"volumeClaimTemplate": disk},
            }
        },
    }


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merged key by key, as helm does; anything else in `above` replaces what is below."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[key] = overlaid(under, value) if both else value  # type: ignore[arg-type]  # `both` says so
    return merged
