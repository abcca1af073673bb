"""Names, tags and labels of a cluster's resources on AWS and in Kubernetes. Other modules never build such a name."""

from __future__ import annotations

from collections.abc import Mapping

CLUSTER_TAG = "cerebro/cluster"
"""Tag of all resources, with the cluster's name. Resources without it are not Cerebro's."""
ZONES_TAG = "cerebro/zones"
"""Tag of the EKS cluster with its availability zones, the nodes' first."""
STACK_TAG = "alpha.eksctl.io/cluster-name"
FINGERPRINT = "cerebro/fingerprint"
"""Fingerprint of a part's input: a tag of the stack, an annotation of storage classes, a release's description."""

CONTROL_GROUP = "control"
NAMESPACE = "cerebro"
PLATFORM = "cerebro"
GPU_PLUGIN = "nvidia-device-plugin"
MONITORING = "kube-prometheus-stack"
MONITORING_NAMESPACE = "monitoring"


def cluster_stack(name: str) -> str:
    """Return the name of eksctl's stack of control plane and network."""
    return f"eksctl-{name}-cluster"


def group_stack(name: str, group: str) -> str:
    """Return the name of eksctl's stack of a node group."""
    return f"eksctl-{name}-nodegroup-{group}"


def addon_stack_prefix(name: str, addon: str) -> str:
    """Return the prefix of eksctl's stacks with an addon's roles."""
    return f"eksctl-{name}-addon-{addon}"


def own_stack(name: str) -> str:
    """Return the name of Cerebro's stack: file system and roles of service accounts."""
    return f"cerebro-{name}"


def is_ours(name: str, tags: Mapping[str, str]) -> bool:
    """Return True if tags of Cerebro, eksctl or a Kubernetes controller name the cluster."""
    return tags.get(f"kubernetes.io/cluster/{name}") == "owned" or any(
        tags.get(key) == name for key in (CLUSTER_TAG, STACK_TAG, "elbv2.k8s.aws/cluster")
    )


def log_group_prefixes(name: str) -> tuple[str, ...]:
    """Return the prefixes of log groups of EKS and CloudWatch's agents, which outlive the cluster."""
    return (f"/aws/eks/{name}/", f"/aws/containerinsights/{name}/")
