"""Every name, tag and label that a cluster's parts are found by again. Two modules never build the same name."""

from __future__ import annotations

CLUSTER_TAG = "cerebro/cluster"
"""On everything that is made; its value is the cluster's name. What lacks it is somebody else's."""
ZONES_TAG = "cerebro/zones"
"""On the EKS cluster: its availability zones, the one of the nodes first."""

ROLE_LABEL = "cerebro/role"
CONTROL_ROLE = "control"
WORKER_ROLE = "worker"
CONTROL_GROUP = "control"

NAMESPACE = "cerebro"
PLATFORM = "cerebro"
GPU_PLUGIN = "nvidia-device-plugin"
MONITORING = "kube-prometheus-stack"
MONITORING_NAMESPACE = "monitoring"

SHARED_CLASS = "efs-sc"
SHARD_CLASS = "gp3"
FINGERPRINT = "cerebro/fingerprint"
"""Annotation of the storage classes; a release carries its fingerprint as its description."""

STACK_TAG = "alpha.eksctl.io/cluster-name"


def stack_prefix(name: str) -> str:
    """What the names of all CloudFormation stacks of eksctl for this cluster begin with."""
    return f"eksctl-{name}-"


def cluster_stack(name: str) -> str:
    """The stack of the control plane and its network."""
    return f"{stack_prefix(name)}cluster"


def group_stack(name: str, group: str) -> str:
    """The stack of a node group."""
    return f"{stack_prefix(name)}nodegroup-{group}"


def addon_stack_prefix(name: str, addon: str) -> str:
    """What the names of the stacks with an addon's roles begin with."""
    return f"{stack_prefix(name)}addon-{addon}"


def is_identity_stack(name: str, stack: str, service_account: str) -> bool:
    """Whether a stack holds the role of a service account of ours; eksctl's releases differ in the exact name."""
    begins = stack.startswith(f"{stack_prefix(name)}podidentityrole-")
    return begins and stack.endswith(f"-{service_account}")


def owned_tag(name: str) -> str:
    """The tag that Kubernetes' own controllers put on what they make, with the value ``owned``."""
    return f"kubernetes.io/cluster/{name}"


def file_system_token(name: str) -> str:
    """EFS's idempotency token: a second creation answers with the first file system."""
    return f"cerebro-{name}"


def file_system_group(name: str) -> str:
    """The security group of the mount targets."""
    return f"cerebro-{name}-efs"


def log_group_prefixes(name: str) -> tuple[str, ...]:
    """Where EKS and CloudWatch's agents write; these groups outlive the cluster."""
    return (f"/aws/eks/{name}/", f"/aws/containerinsights/{name}/")
