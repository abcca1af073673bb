"""What there is of a cluster, asked of AWS: `observe` reads, a `World` holds it. No record of earlier commands is kept.

Stacks are recognised by their tags, not by the beginning of their name, because ``eksctl-demo-`` also begins the stacks
of a cluster named ``demo-two``. What costs money (``data/inventory.yaml``) is asked of each service itself, whether or
not a cluster still exists: AWS's index of tags lags by minutes and would name what has just been deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import AliasPath, BaseModel, ConfigDict, Field

from cerebro.cloud import names
from cerebro.cloud.aws import Aws, AwsError
from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.manifests import data

_READY = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE")
_MOVING = re.compile(r"(?!REVIEW).*_IN_PROGRESS")
_TAGS_PER_CALL = 20


class _Described(BaseModel):
    """What EKS says of something, as far as it is used."""

    model_config = ConfigDict(frozen=True, validate_by_name=True)


class Cluster(_Described):
    """The control plane on EKS."""

    status: str
    version: str = ""
    endpoint: str = ""
    tags: dict[str, str] = {}


class NodeGroup(_Described):
    """A managed node group."""

    status: str
    instance_types: list[str] = Field([], alias="instanceTypes")
    market: str = Field("ON_DEMAND", alias="capacityType")
    """SPOT, or ON_DEMAND."""
    desired: int = Field(0, validation_alias=AliasPath("scalingConfig", "desiredSize"))
    issues: list[dict[str, Any]] = Field([], validation_alias=AliasPath("health", "issues"))
    """What EKS finds wrong with it: code and message."""

    @property
    def has_failed(self) -> bool:
        """Whether it can only be removed. A degraded one exists and scales; EKS repairs its nodes."""
        return self.status in ("CREATE_FAILED", "DELETE_FAILED")

    @property
    def problems(self) -> list[str]:
        """Its issues as text."""
        return [f"{issue.get('code')}: {issue.get('message')}" for issue in self.issues]


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
    mark: str = ""
    """Fingerprint of what our own stack was made from."""
    groups: Mapping[str, NodeGroup] = field(default_factory=dict)
    addons: Mapping[str, str] = field(default_factory=dict)
    """Status by name."""
    file_system: str = ""
    """Its id; empty: there is none."""
    resources: tuple[Resource, ...] = ()
    """What costs money; only where it was asked for."""

    @property
    def is_foreign(self) -> bool:
        """Whether there is a cluster of that name that was not made here."""
        is_marked = self.cluster is None or self.cluster.tags.get(names.CLUSTER_TAG) == self.name
        return not is_marked and names.cluster_stack(self.name) not in self.stacks

    @property
    def is_paused(self) -> bool:
        """Whether there are node groups, and none has nodes."""
        return bool(self.groups) and not any(group.desired for group in self.groups.values())

    @property
    def moving_stacks(self) -> list[str]:
        """Stacks that CloudFormation is at work on; one whose first change set was not executed waits for us."""
        return [name for name, state in self.stacks.items() if _MOVING.fullmatch(state)]

    def is_stack_ready(self, stack: str) -> bool:
        """Whether a stack is there, whole."""
        return self.stacks.get(stack) in _READY


def observe(aws: Aws, name: str, *, with_resources: bool = False) -> World:
    """What there is of the cluster `name`; what costs money is listed only if asked for, by a dozen calls more.

    Raises:
        AwsError: AWS refused, or did not answer.
    """
    cluster = _look(aws, "describe_cluster", "cluster", name=name)
    groups, addons = (_each(aws, name, thing) if cluster else {} for thing in ("nodegroup", "addon"))
    found = aws.find("cloudformation", "describe_stacks", "Stacks[?StackStatus != 'DELETE_COMPLETE'][]")
    tagged = [stack for stack in found if name in map(_tags(stack).get, (names.STACK_TAG, names.CLUSTER_TAG))]
    stacks = {stack["StackName"]: stack for stack in tagged}
    own, systems = stacks.get(names.own_stack(name), {}), "FileSystems[?LifeCycleState != 'deleted'][]"
    return World(
        name=name,
        cluster=None if cluster is None else Cluster.model_validate(cluster),
        stacks={stack: seen["StackStatus"] for stack, seen in stacks.items()},
        mark=_tags(own).get(names.FINGERPRINT, ""),
        groups={each: NodeGroup.model_validate(seen) for each, seen in groups.items()},
        addons={each: addon["status"] for each, addon in addons.items()},
        file_system=next(
            (each["FileSystemId"] for each in aws.find("efs", "describe_file_systems", systems)
             if _tags(each).get(names.CLUSTER_TAG) == name), "",
        ),
        resources=tuple(_resources(aws, name)) if with_resources else (),
    )  # fmt: skip


def _look(aws: Aws, operation: str, key: str, **arguments: Any) -> dict[str, Any] | None:
    """Of EKS; None if it is not there, or not there any more."""
    try:
        found: dict[str, Any] = aws.look("eks", operation, **arguments)[key]
    except AwsError as problem:
        if problem.code == "ResourceNotFoundException":
            return None
        raise
    return found


def _each(aws: Aws, cluster: str, thing: str) -> dict[str, dict[str, Any]]:
    """EKS's description of each nodegroup, or addon, by name."""
    listed = aws.find("eks", f"list_{thing}s", f"{thing}s[]", clusterName=cluster)
    asked = {name: {"clusterName": cluster, f"{thing}Name": name} for name in listed}
    seen = {name: _look(aws, f"describe_{thing}", thing, **which) for name, which in asked.items()}
    return {name: found for name, found in seen.items() if found is not None}


def _tags(thing: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in thing.get("Tags") or ()}


# --- what costs money ----------------------------------------------------------------------------


def _resources(aws: Aws, name: str) -> Iterator[Resource]:
    """Everything that bears the cluster's name, by tags of ours, of eksctl or of Kubernetes' controllers."""
    end = f"--region {aws.region}"
    for _ in aws.find("eks", "list_clusters", f"clusters[?@ == '{name}']"):
        delete = f"eksctl delete cluster --name {name} {end} --wait"
        yield Resource(kind="EKS cluster", id=name, about="", remove=delete)
    for kind, how in data("inventory.yaml").items():
        for seen in _listed(aws, name, how):
            is_named = "prefixed" in how  # log groups are recognised by their names
            if is_named or names.is_ours(name, {tag["Key"]: tag["Value"] for tag in seen["tags"] or ()}):
                about = " ".join(filter(None, seen.get("about") or ()))
                if "bytes" in seen:
                    about = f"{(seen['bytes'] or 0) / 2**30:.1f} GiB"
                remove = f"aws {how['remove']} {seen['id']} {end}"
                yield Resource(kind=kind, id=seen["id"], about=about, remove=remove)


def _listed(aws: Aws, name: str, how: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    service, operation = how["listed"]
    if "prefixed" in how:
        for prefix in names.log_group_prefixes(name):
            yield from aws.find(service, operation, how["found"], **{how["prefixed"]: prefix})
        return
    # Unfiltered: filters have no "or" over tags, and a filter that a service does not know hides what costs money.
    found = aws.find(service, operation, how["found"], **how.get("more", {}))
    if "tagged" not in how:
        yield from found
        return
    argument, expression = how["tagged"]
    for first in range(0, len(found), _TAGS_PER_CALL):
        some = found[first : first + _TAGS_PER_CALL]
        yield from aws.find(service, "describe_tags", expression, **{argument: some})


# --- what a file comes to, beside what there is --------------------------------------------------


def conflicts(file: ClusterFile, world: World) -> list[str]:
    """What the file wants that cannot be had by changing what is there; empty if creation may go on."""
    cluster, found = world.cluster, []
    if cluster is None:
        return []
    if world.is_foreign:
        return [
            f"name: an EKS cluster {file.name} exists in {file.region} that was not made by `cerebro cluster` (it "
            f"lacks the tag {names.CLUSTER_TAG}): take another name"
        ]
    if cluster.version and cluster.version != file.kubernetes:
        found.append(
            f"kubernetes: the cluster runs {cluster.version}, the file says {file.kubernetes}: write that, "
            f"or move the cluster first: eksctl upgrade cluster --name {file.name} --region {file.region} --approve"
        )
    for part, group in file.nodes.items():
        there = world.groups.get(group.name)
        if there is None or there.has_failed:  # a failed one is made anew, with whatever the file says now
            continue
        other = (
            "write that" if part == "controller" else f"give the group another name, and delete {group.name}"
        )
        seen, kind = f"node group {group.name} has", "/".join(there.instance_types)
        if kind not in ("", "/".join(group.types)):
            field = "fallbacks" if there.instance_types[0] == group.instance_type else "instance_type"
            found.append(f"{part}.{field}: {seen} {kind} and cannot change: {other}")
        if (there.market == "SPOT") != group.spot:
            found.append(f"{part}.spot: {seen} nodes {there.market} and cannot change: {other}")
    return found


def known_zones(file: ClusterFile, world: World) -> tuple[str, ...]:
    """Availability zones, the one of the nodes first, as far as cluster or file say; empty: to be chosen."""
    if world.cluster is not None and world.cluster.tags.get(names.ZONES_TAG):
        return tuple(world.cluster.tags[names.ZONES_TAG].split())
    return tuple(file.zones or ())
