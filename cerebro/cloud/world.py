"""What there is of a cluster, as observed: values, and what they come to. Pure.

`observing` fills these in, the steps decide on them, and tests make them up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.names import CLUSTER_TAG, CONTROL_GROUP, ZONES_TAG, cluster_stack, group_stack


class Condition(StrEnum):
    """Of anything that AWS makes in its own time."""

    ABSENT = "absent"  # to be made
    CHANGING = "changing"  # AWS is at it: wait
    BROKEN = "broken"  # failed or rolled back: to be removed, then made again
    READY = "ready"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The control plane on EKS."""

    status: str
    version: str = ""
    network: str = ""
    subnets: tuple[str, ...] = ()
    """Where the file system is mounted: one per zone, the private one where there is one."""
    security_group: str = ""
    """Of the nodes and the control plane; EKS makes it."""
    endpoint: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """A managed node group."""

    status: str
    instance_types: tuple[str, ...] = ()
    is_spot: bool = False
    desired: int = 0
    problems: tuple[str, ...] = ()
    """What EKS says of its health."""


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """On EFS."""

    id: str
    state: str
    num_mounted: int = 0
    """Mount targets that can be used."""
    is_of_stack: bool = True
    """Whether CloudFormation made it; clusters made before that have one of their own."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """Of helm."""

    namespace: str
    status: str
    mark: str
    """Fingerprint of chart and values; empty if the last attempt failed."""


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
    about: str
    remove: str
    """The command that removes it."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything that bears the cluster's name."""

    name: str
    cluster: Cluster | None = None
    stacks: Mapping[str, str] = field(default_factory=dict)
    """CloudFormation's status by name."""
    groups: Mapping[str, NodeGroup] = field(default_factory=dict)
    addons: Mapping[str, str] = field(default_factory=dict)
    """Status by name."""
    identities: frozenset[str] = frozenset()
    """Service accounts of our namespace with an AWS identity."""
    file_system: FileSystem | None = None
    has_kubeconfig: bool = False
    kube: Kube | None = None
    """None: the API was not asked, or did not answer."""
    resources: tuple[Resource, ...] = ()
    """What costs money; only where it was asked for."""

    @property
    def is_foreign(self) -> bool:
        """Whether there is a cluster of that name that was not made here."""
        cluster = self.cluster
        is_marked = cluster is None or cluster.tags.get(CLUSTER_TAG) == self.name
        return not is_marked and cluster_stack(self.name) not in self.stacks

    @property
    def is_paused(self) -> bool:
        """Whether there are node groups, and none has nodes."""
        return bool(self.groups) and not any(group.desired for group in self.groups.values())

    def cluster_condition(self) -> Condition:
        """Of the control plane, by what EKS and its stack say.

        Both count: a stack that failed late leaves an active cluster without, say, routes; a cluster that was deleted
        by hand leaves a complete stack.
        """
        of_stack = stack_condition(self.stacks.get(cluster_stack(self.name)))
        if self.cluster is None:
            return Condition.BROKEN if of_stack is Condition.READY else of_stack
        if Condition.CHANGING is of_stack or self.cluster.status in ("CREATING", "DELETING", "PENDING"):
            return Condition.CHANGING
        if self.cluster.status == "FAILED" or of_stack is not Condition.READY:
            return Condition.BROKEN
        return Condition.READY

    def group_condition(self, name: str) -> Condition:
        """Of a node group, by what EKS and its stack say."""
        group = self.groups.get(name)
        of_stack = stack_condition(self.stacks.get(group_stack(self.name, name)))
        if group is None:
            return Condition.BROKEN if of_stack is Condition.READY else of_stack
        if of_stack is Condition.CHANGING or group.status in ("CREATING", "UPDATING", "DELETING"):
            return Condition.CHANGING
        # DEGRADED: it exists and scales, some of its nodes have a problem; EKS repairs them.
        if group.status in ("CREATE_FAILED", "DELETE_FAILED") or of_stack is Condition.BROKEN:
            return Condition.BROKEN
        return Condition.READY

    def addon_condition(self, name: str) -> Condition:
        """Of an EKS addon."""
        status = self.addons.get(name)
        return Condition.ABSENT if status is None else _ADDON.get(status, Condition.BROKEN)


_STACK_READY = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE")
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


def conflicts(file: ClusterFile, world: World) -> list[str]:
    """What the file wants that cannot be had by changing what is there; empty if creation may go on."""
    cluster, found = world.cluster, []
    if cluster is None:
        return []
    if world.is_foreign:
        return [
            f"name: an EKS cluster {file.name} exists in {file.region} that was not made by `cerebro cluster` (it "
            f"lacks the tag {CLUSTER_TAG}): take another name"
        ]
    if cluster.version and cluster.version != file.kubernetes:
        found.append(
            f"kubernetes: the cluster runs {cluster.version}, the file says {file.kubernetes}: write that, "
            f"or move the cluster first: eksctl upgrade cluster --name {file.name} --region {file.region} --approve"
        )
    wanted = {CONTROL_GROUP: ("controller", file.controller.instance_type, False)}
    for index, group in enumerate(file.workers):
        wanted[group.name] = (f"workers[{index}]", group.instance_type, group.spot)
    for name, (field_, instance_type, spot) in wanted.items():
        there = world.groups.get(name)
        # One that failed is made anew, with whatever the file says now.
        if there is None or there.status in ("CREATE_FAILED", "DELETE_FAILED"):
            continue
        if there.instance_types and there.instance_types != (instance_type,):
            other = (
                "write that"
                if name == CONTROL_GROUP
                else "give the group another name, and delete the old one"
            )
            has = "/".join(there.instance_types)
            found.append(f"{field_}.instance_type: node group {name} has {has} and cannot change: {other}")
        if there.is_spot != spot:
            kind = "spot" if there.is_spot else "on demand"
            found.append(
                f"{field_}.spot: node group {name} exists {kind} and cannot change: give it another name"
            )
    return found


def surplus_groups(file: ClusterFile, world: World) -> list[str]:
    """Node groups of the cluster that the file does not name; they are left alone, and cost money."""
    return sorted(set(world.groups) - {CONTROL_GROUP, *(group.name for group in file.workers)})


def known_zones(file: ClusterFile, world: World) -> tuple[str, ...]:
    """Availability zones, the one of the nodes first, as far as cluster or file say; empty: to be chosen."""
    if world.cluster is not None and world.cluster.tags.get(ZONES_TAG):
        return tuple(world.cluster.tags[ZONES_TAG].split())
    return tuple(file.zones or ())
