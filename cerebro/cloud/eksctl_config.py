"""eksctl's configuration of a cluster: pure, a file in, a mapping out (schema ``eksctl.io/v1alpha5``).

All nodes stand in one availability zone. Shards are EBS volumes, which cannot leave their zone: after a pause, or when
a spot node is lost, a node in another zone could not take the volume of its worker. It also keeps the models' hops free
of charge. The control plane itself spans two zones, as EKS demands.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from cerebro.cloud.clusterfile import ClusterFile, WorkerGroup
from cerebro.cloud.names import (
    CONTROL_GROUP,
    CONTROL_ROLE,
    NAMESPACE,
    ROLE_LABEL,
    WORKER_ROLE,
    ZONES_TAG,
)

NETWORK_ADDONS = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")
"""Daemons that nodes need to become ready, so they come before the nodes."""
WORKLOAD_ADDONS = ("coredns", "metrics-server", "aws-ebs-csi-driver", "aws-efs-csi-driver")
"""Pods that need nodes to run on."""
ADDONS = (*NETWORK_ADDONS, *WORKLOAD_ADDONS)

S3_ACCOUNTS = ("cerebro-worker", "cerebro-controller", "cerebro-notebook")
"""Service accounts of the chart that read objects or metadata."""
GPU_RESOURCE = "nvidia.com/gpu"

_CONFIGURATION = {
    "vpc-cni": '{"enableNetworkPolicy": "true"}',  # without it the chart's network policies are accepted and ignored
}


def configuration(
    file: ClusterFile,
    zones: Sequence[str],
    *,
    addons: Collection[str] = ADDONS,
    identities: Collection[str] = S3_ACCOUNTS,
) -> dict[str, Any]:
    """What ``eksctl ... -f`` is given.

    Args:
        file: what is asked for.
        zones: availability zones, the one of the nodes first.
        addons: the ones to name; a later run names only those that are missing, since eksctl refuses what exists.
        identities: likewise, of the service accounts.
    """
    made: dict[str, Any] = {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": {
            "name": file.name,
            "region": file.region,
            "version": file.kubernetes,
            "tags": {**file.all_tags, ZONES_TAG: " ".join(zones)},
        },
        "availabilityZones": list(zones),
        "vpc": {"nat": {"gateway": "Single"}},
        "addonsConfig": {"autoApplyPodIdentityAssociations": True},
        "addons": [_addon(name, file) for name in ADDONS if name in addons],
        "managedNodeGroups": [
            _control(file, zones[0]),
            *(_workers(file, group, zones[0]) for group in file.workers),
        ],
    }
    if file.s3 and identities:
        made["iam"] = {
            "podIdentityAssociations": [_identity(file, name) for name in S3_ACCOUNTS if name in identities]
        }
    return made


def wanted_identities(file: ClusterFile) -> frozenset[str]:
    """Service accounts that get an AWS identity."""
    return frozenset(S3_ACCOUNTS if file.s3 else ())


def _addon(name: str, file: ClusterFile) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "tags": file.all_tags}
    if name in _CONFIGURATION:
        made["configurationValues"] = _CONFIGURATION[name]
    return made


def _group(file: ClusterFile, zone: str) -> dict[str, Any]:
    return {
        "amiFamily": "AmazonLinux2023",
        "availabilityZones": [zone],
        "privateNetworking": True,
        "volumeType": "gp3",
        "volumeEncrypted": True,
        "disableIMDSv1": True,
        "disablePodIMDS": True,  # pods have identities of their own, never the node's
        "propagateASGTags": True,
        "tags": file.all_tags,
    }


def _control(file: ClusterFile, zone: str) -> dict[str, Any]:
    return {
        "name": CONTROL_GROUP,
        "instanceType": file.controller.instance_type,
        "minSize": 0,
        "maxSize": 2,  # room for the second node while EKS replaces the first
        "desiredCapacity": 1,
        "volumeSize": file.controller.root_gib,
        "labels": {ROLE_LABEL: CONTROL_ROLE},
        **_group(file, zone),
    }


def _workers(file: ClusterFile, group: WorkerGroup, zone: str) -> dict[str, Any]:
    labels = {ROLE_LABEL: WORKER_ROLE, "cerebro/group": group.name}
    if group.gpus:
        labels[f"{GPU_RESOURCE}.present"] = "true"  # what the device plugin's own affinity asks for
    return {
        "name": group.name,
        "instanceType": group.instance_type,
        "minSize": 0,  # pausing needs it
        "maxSize": group.count,
        "desiredCapacity": group.count,
        "spot": group.spot,
        "volumeSize": group.root_gib,
        "labels": labels,
        # The system's pods stay on the control node: workers come and go.
        "taints": [{"key": ROLE_LABEL, "value": WORKER_ROLE, "effect": "NoSchedule"}],
        **_group(file, zone),
    }


def _identity(file: ClusterFile, account: str) -> dict[str, Any]:
    buckets = [entry.partition("/") for entry in file.s3]
    partition = (
        "aws-cn" if file.region.startswith("cn-") else "aws-us-gov" if "-gov-" in file.region else "aws"
    )
    arn = f"arn:{partition}:s3:::"
    return {
        "namespace": NAMESPACE,
        "serviceAccountName": account,
        "tags": file.all_tags,
        "permissionPolicy": {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Action": ["s3:ListBucket", "s3:GetBucketLocation"],
                    "Resource": sorted({f"{arn}{bucket}" for bucket, _, _ in buckets}),
                },
                {
                    "Effect": "Allow",
                    "Action": ["s3:GetObject"],
                    "Resource": [f"{arn}{bucket}/{prefix}*" for bucket, _, prefix in buckets],
                },
            ],
        },
    }
