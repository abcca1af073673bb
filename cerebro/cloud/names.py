"""Every name, tag and label that a cluster's parts are found by again. Two modules never build the same name."""

from __future__ import annotations

from collections.abc import Mapping

CLUSTER_TAG = "cerebro/cluster"
"""On everything that is made; its value is the cluster's name. What lacks it belongs to somebody else."""
ZONES_TAG = "cerebro/zones"
"""On the EKS cluster: its availability zones, the one of the nodes first."""
STACK_TAG = "alpha.eksctl.io/cluster-name"
FINGERPRINT = "cerebro/fingerprint"
"""What a part was made from: a tag of our stack, an annotation of storage classes, a release's description."""

CONTROL_GROUP = "control"
NAMESPACE = "cerebro"
PLATFORM = "cerebro"
GPU_PLUGIN = "nvidia-device-plugin"
MONITORING = "kube-prometheus-stack"
MONITORING_NAMESPACE = "monitoring"


def cluster_stack(name: str) -> str:
    """eksctl's stack of the control plane and its network."""
    return f"eksctl-{name}-cluster"


def group_stack(name: str, group: str) -> str:
    """eksctl's stack of a node group."""
    return f"eksctl-{name}-nodegroup-{group}"


def addon_stack_prefix(name: str, addon: str) -> str:
    """What the names of eksctl's stacks with an addon's roles begin with."""
    return f"eksctl-{name}-addon-{addon}"


def own_stack(name: str) -> str:
    """Our stack: the file system and the roles of service accounts."""
    return f"cerebro-{name}"


def is_ours(name: str, tags: Mapping[str, str]) -> bool:
    """Whether tags say that something belongs to the cluster: made by us, by eksctl or by a controller inside it."""
    return tags.get(f"kubernetes.io/cluster/{name}") == "owned" or any(
        tags.get(key) == name for key in (CLUSTER_TAG, STACK_TAG, "elbv2.k8s.aws/cluster")
    )


def log_group_prefixes(name: str) -> tuple[str, ...]:
    """Where EKS and CloudWatch's agents write; these groups outlive the cluster."""
    return (f"/aws/eks/{name}/", f"/aws/containerinsights/{name}/")
