"""What there is of a cluster, as observed: values only.

`observing` fills these in, `planning` and the steps decide on them, and tests make them up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Condition(StrEnum):
    """Of anything that AWS makes in its own time."""

    ABSENT = "absent"  # to be made
    CHANGING = "changing"  # AWS is at it: wait
    BROKEN = "broken"  # failed or rolled back: to be removed, then made again
    READY = "ready"


@dataclass(frozen=True, kw_only=True)
class Subnet:
    """One of the cluster's network."""

    id: str
    zone: str
    is_private: bool


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The control plane on EKS."""

    status: str
    version: str
    vpc: str
    subnets: tuple[Subnet, ...]
    security_group: str
    """Of the nodes and the control plane; EKS makes it."""
    tags: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """A managed node group."""

    status: str
    instance_types: tuple[str, ...]
    is_spot: bool
    desired: int
    problems: tuple[str, ...] = ()
    """What EKS says of its health."""


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """On EFS."""

    id: str
    state: str
    mounted: Mapping[str, str]
    """State of the mount target, by subnet."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """Of helm."""

    namespace: str
    status: str
    fingerprint: str
    """Of chart and values; empty if the last attempt failed."""


@dataclass(frozen=True, kw_only=True)
class Kube:
    """What the cluster's own API answers."""

    storage_classes: Mapping[str, str] = field(default_factory=dict)
    """Fingerprint by name."""
    releases: Mapping[str, Release] = field(default_factory=dict)
    balancers: tuple[tuple[str, str, str], ...] = ()
    """(kind, namespace, name) of services and ingresses that have load balancers."""
    claims: int = 0
    """Volume claims, over all namespaces."""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """Something on AWS that costs money, or holds what does."""

    kind: str
    id: str
    about: str = ""
    remove: str
    """The command that removes it."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything that bears the cluster's name."""

    cluster: Cluster | None = None
    stacks: Mapping[str, str] = field(default_factory=dict)
    """CloudFormation's status by name."""
    groups: Mapping[str, NodeGroup] = field(default_factory=dict)
    addons: Mapping[str, str] = field(default_factory=dict)
    """Status by name."""
    identities: frozenset[str] = frozenset()
    """Service accounts of our namespace with an AWS identity."""
    file_system: FileSystem | None = None
    file_system_group: str | None = None
    """Security group of the mount targets."""
    is_file_system_group_open: bool = False
    """Whether it has its rule."""
    has_kubeconfig: bool = False
    kube: Kube | None = None
    """None: the API was not asked, or did not answer."""
    resources: tuple[Resource, ...] = ()
    """What costs money; only where it was asked for."""


_STACK_READY = frozenset(
    {"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE"}
)
_ADDON = {
    "CREATING": Condition.CHANGING,
    "UPDATING": Condition.CHANGING,
    "DELETING": Condition.CHANGING,
    "DEGRADED": Condition.CHANGING,  # as coredns while there are no nodes: heals by itself, or waiting ends
    "ACTIVE": Condition.READY,
    "UPDATE_FAILED": Condition.READY,  # it runs, as before the update
}


def stack_condition(status: str | None) -> Condition:
    """Of a CloudFormation stack, by its status; None: there is none."""
    if status is None:
        return Condition.ABSENT
    if status.endswith("_IN_PROGRESS"):
        return Condition.CHANGING
    return Condition.READY if status in _STACK_READY else Condition.BROKEN


def cluster_condition(cluster: Cluster | None, stack: str | None) -> Condition:
    """Of the control plane, by what EKS and its stack say.

    Both count: a stack that failed late leaves an active cluster without, say, routes; a cluster that was deleted by
    hand leaves a complete stack.
    """
    of_stack = stack_condition(stack)
    if cluster is None:
        return Condition.BROKEN if of_stack is Condition.READY else of_stack
    if Condition.CHANGING is of_stack or cluster.status in ("CREATING", "DELETING", "PENDING"):
        return Condition.CHANGING
    if cluster.status == "FAILED" or of_stack is not Condition.READY:
        return Condition.BROKEN
    return Condition.READY


def group_condition(group: NodeGroup | None, stack: str | None) -> Condition:
    """Of a node group, by what EKS and its stack say."""
    of_stack = stack_condition(stack)
    if group is None:
        return Condition.BROKEN if of_stack is Condition.READY else of_stack
    if of_stack is Condition.CHANGING or group.status in ("CREATING", "UPDATING", "DELETING"):
        return Condition.CHANGING
    # DEGRADED: it exists and scales, some of its nodes have a problem; EKS repairs them.
    if group.status in ("CREATE_FAILED", "DELETE_FAILED") or of_stack is Condition.BROKEN:
        return Condition.BROKEN
    return Condition.READY


def addon_condition(status: str | None) -> Condition:
    """Of an EKS addon."""
    return Condition.ABSENT if status is None else _ADDON.get(status, Condition.BROKEN)


def mount_subnets(cluster: Cluster) -> tuple[str, ...]:
    """The subnets that get a mount target: EFS allows one per zone; private ones, where the nodes are, come first."""
    chosen: dict[str, Subnet] = {}
    for subnet in sorted(cluster.subnets, key=lambda subnet: (not subnet.is_private, subnet.id)):
        chosen.setdefault(subnet.zone, subnet)
    return tuple(sorted(subnet.id for subnet in chosen.values()))
