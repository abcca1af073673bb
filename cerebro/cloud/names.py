"""Every name, tag and label that a cluster's parts are found by again. Two modules never build the same name."""

from __future__ import annotations

from collections.abc import Mapping

CLUSTER_TAG = "cerebro/cluster"
"""On everything that is made; its value is the cluster's name. What lacks it is somebody else's."""
ZONES_TAG = "cerebro/zones"
"""On the EKS cluster: its availability zones, the one of the nodes first."""
STACK_TAG = "alpha.eksctl.io/cluster-name"

CONTROL_GROUP = "control"
NAMESPACE = "cerebro"
PLATFORM = "cerebro"
GPU_PLUGIN = "nvidia-device-plugin"
MONITORING = "kube-prometheus-stack"
MONITORING_NAMESPACE = "monitoring"
FINGERPRINT = "cerebro/fingerprint"
"""Annotation of the storage classes; a release carries its fingerprint as its description."""


def cluster_stack(name: str) -> str:
    """The stack of the control plane and its network."""
    return f"eksctl-{name}-cluster"


def group_stack(name: str, group: str) -> str:
    """The stack of a node group."""
    return f"eksctl-{name}-nodegroup-{group}"


def addon_stack_prefix(name: str, addon: str) -> str:
    """What the names of the stacks with an addon's roles begin with."""
    return f"eksctl-{name}-addon-{addon}"


def is_identity_stack(name: str, stack: str, service_account: str) -> bool:
    """Whether a stack holds the role of a service account of ours; eksctl's releases differ in the exact name."""
    return stack.startswith(f"eksctl-{name}-podidentityrole-") and stack.endswith(f"-{service_account}")


def storage_stack(name: str) -> str:
    """The stack of the file system."""
    return f"cerebro-{name}-storage"


def mounts_stack(name: str) -> str:
    """The stack of the file system's mount targets."""
    return f"cerebro-{name}-mounts"


def owned_tag(name: str) -> str:
    """The tag that Kubernetes' own controllers put on what they make, with the value ``owned``."""
    return f"kubernetes.io/cluster/{name}"


def is_ours(name: str, tags: Mapping[str, str]) -> bool:
    """Whether tags say that something belongs to the cluster: made by us, by eksctl or by a controller inside it."""
    return tags.get(owned_tag(name)) == "owned" or any(
        tags.get(key) == name for key in (CLUSTER_TAG, STACK_TAG, "elbv2.k8s.aws/cluster")
    )


def log_group_prefixes(name: str) -> tuple[str, ...]:
    """Where EKS and CloudWatch's agents write; these groups outlive the cluster."""
    return (f"/aws/eks/{name}/", f"/aws/containerinsights/{name}/")
