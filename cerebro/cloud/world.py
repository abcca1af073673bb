"""`World`: the state of a cluster on AWS, read with boto3, and its conflicts with the cluster file.

`Site.observe` reads it at the start of a command and after each change. No record of earlier commands is kept, and
nothing is changed here.

Stacks are recognized by their tags, because the prefix ``eksctl-demo-`` also matches stacks of a cluster ``demo-two``.
Billed resources (``data/inventory.yaml``) are listed by each service, whether or not the cluster exists: AWS's index
of tags lags by minutes and would contain deleted resources.
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
    """Part of an EKS description."""

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
    """SPOT or ON_DEMAND."""
    desired: int = Field(0, validation_alias=AliasPath("scalingConfig", "desiredSize"))
    issues: list[dict[str, Any]] = Field([], validation_alias=AliasPath("health", "issues"))
    """Problems that EKS reports, with code and message."""

    @property
    def has_failed(self) -> bool:
        """True if it can only be removed. A degraded group exists and scales; EKS repairs its nodes."""
        return self.status in ("CREATE_FAILED", "DELETE_FAILED")

    @property
    def problems(self) -> list[str]:
        """Its issues as text."""
        return [f"{issue.get('code')}: {issue.get('message')}" for issue in self.issues]


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A billed resource on AWS, or one that contains billed resources."""

    kind: str
    id: str
    about: str
    remove: str
    """Command that removes it."""


@dataclass(frozen=True, kw_only=True)
class World:
    """All resources with the cluster's name."""

    name: str
    cluster: Cluster | None = None
    stacks: Mapping[str, str] = field(default_factory=dict)
    """Stack -> CloudFormation's status."""
    mark: str = ""
    """Fingerprint of the input of Cerebro's stack."""
    groups: Mapping[str, NodeGroup] = field(default_factory=dict)
    addons: Mapping[str, str] = field(default_factory=dict)
    """Addon -> status."""
    file_system: str = ""
    """Id of the file system, or an empty text."""
    resources: tuple[Resource, ...] = ()
    """Billed resources, if requested."""

    @property
    def is_foreign(self) -> bool:
        """True if another tool created the cluster of this name."""
        is_marked = self.cluster is None or self.cluster.tags.get(names.CLUSTER_TAG) == self.name
        return not is_marked and names.cluster_stack(self.name) not in self.stacks

    @property
    def is_paused(self) -> bool:
        """True if there are node groups and all are scaled to zero."""
        return bool(self.groups) and not any(group.desired for group in self.groups.values())

    @property
    def moving_stacks(self) -> list[str]:
        """Stacks that CloudFormation is changing; a stack with an unexecuted change set waits for us."""
        return [name for name, state in self.stacks.items() if _MOVING.fullmatch(state)]

    def is_stack_ready(self, stack: str) -> bool:
        """Return True if a stack is complete."""
        return self.stacks.get(stack) in _READY


def observe(aws: Aws, name: str, *, with_resources: bool = False) -> World:
    """Read the state of the cluster `name` from AWS.

    Args:
        with_resources: True to list billed resources, with a dozen further calls.

    Raises:
        AwsError: AWS refused, or did not answer.
    """
    cluster = _describe(aws, "describe_cluster", "cluster", name=name)
    groups, addons = (_each(aws, name, thing) if cluster else {} for thing in ("nodegroup", "addon"))
    found = aws.find("cloudformation", "describe_stacks", "Stacks[?StackStatus != 'DELETE_COMPLETE'][]")
    tagged = [stack for stack in found if name in map(_tags(stack).get, (names.STACK_TAG, names.CLUSTER_TAG))]
    stacks = {stack["StackName"]: stack for stack in tagged}
    stack_description, systems = (
        stacks.get(names.own_stack(name), {}),
        "FileSystems[?LifeCycleState != 'deleted'][]",
    )
    return World(
        name=name,
        cluster=None if cluster is None else Cluster.model_validate(cluster),
        stacks={stack: described["StackStatus"] for stack, described in stacks.items()},
        mark=_tags(stack_description).get(names.FINGERPRINT, ""),
        groups={each: NodeGroup.model_validate(described) for each, described in groups.items()},
        addons={each: addon["status"] for each, addon in addons.items()},
        file_system=next(
            (each["FileSystemId"] for each in aws.find("efs", "describe_file_systems", systems)
             if _tags(each).get(names.CLUSTER_TAG) == name), "",
        ),
        resources=tuple(_resources(aws, name)) if with_resources else (),
    )  # fmt: skip


def _describe(aws: Aws, operation: str, key: str, **arguments: Any) -> dict[str, Any] | None:
    """Return a description by EKS, or `None` if the object does not exist."""
    try:
        found: dict[str, Any] = aws.read("eks", operation, **arguments)[key]
    except AwsError as problem:
        if problem.code == "ResourceNotFoundException":
            return None
        raise
    return found


def _each(aws: Aws, cluster: str, thing: str) -> dict[str, dict[str, Any]]:
    """Return name -> description of each nodegroup or addon."""
    listed = aws.find("eks", f"list_{thing}s", f"{thing}s[]", clusterName=cluster)
    arguments = {name: {"clusterName": cluster, f"{thing}Name": name} for name in listed}
    described = {
        name: _describe(aws, f"describe_{thing}", thing, **which) for name, which in arguments.items()
    }
    return {name: found for name, found in described.items() if found is not None}


def _tags(thing: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in thing.get("Tags") or ()}


# --- billed resources ----------------------------------------------------------------------------


def _resources(aws: Aws, name: str) -> Iterator[Resource]:
    """Yield all resources tagged with the cluster's name by Cerebro, eksctl or a Kubernetes controller."""
    end = f"--region {aws.region}"
    for _ in aws.find("eks", "list_clusters", f"clusters[?@ == '{name}']"):
        delete = f"eksctl delete cluster --name {name} {end} --wait"
        yield Resource(kind="EKS cluster", id=name, about="", remove=delete)
    for kind, how in data("inventory.yaml").items():
        for described in _listed(aws, name, how):
            is_named = "prefixed" in how  # Log groups are recognized by their names.
            if is_named or names.is_ours(name, {tag["Key"]: tag["Value"] for tag in described["tags"] or ()}):
                about = " ".join(filter(None, described.get("about") or ()))
                if "bytes" in described:
                    about = f"{(described['bytes'] or 0) / 2**30:.1f} GiB"
                remove = f"aws {how['remove']} {described['id']} {end}"
                yield Resource(kind=kind, id=described["id"], about=about, remove=remove)


def _listed(aws: Aws, name: str, how: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    service, operation = how["listed"]
    if "prefixed" in how:
        for prefix in names.log_group_prefixes(name):
            yield from aws.find(service, operation, how["found"], **{how["prefixed"]: prefix})
        return
    # Without filters: they have no "or" over tags, and a filter unknown to a service would hide billed
    # resources.
    found = aws.find(service, operation, how["found"], **how.get("more", {}))
    if "tagged" not in how:
        yield from found
        return
    argument, expression = how["tagged"]
    for first in range(0, len(found), _TAGS_PER_CALL):
        some = found[first : first + _TAGS_PER_CALL]
        yield from aws.find(service, "describe_tags", expression, **{argument: some})


# --- comparison with the file --------------------------------------------------------------------


def conflicts(file: ClusterFile, world: World) -> list[str]:
    """Return the parts of the file that the existing cluster cannot be changed to."""
    cluster, found = world.cluster, []
    if cluster is None:
        return []
    if world.is_foreign:
        return [
            f"name: an EKS cluster {file.name} exists in {file.region} that `cerebro cluster` did not create (it lacks "
            f"the tag {names.CLUSTER_TAG}): choose another name"
        ]
    if cluster.version and cluster.version != file.kubernetes:
        found.append(
            f"kubernetes: the cluster runs {cluster.version}, the file says {file.kubernetes}: write that, "
            f"or move the cluster first: eksctl upgrade cluster --name {file.name} --region {file.region} --approve"
        )
    for part, group in file.nodes.items():
        existing = world.groups.get(group.name)
        if existing is None or existing.has_failed:  # A failed one is created again from the file.
            continue
        other = (
            "write that" if part == "controller" else f"give the group another name, and delete {group.name}"
        )
        described, kind = f"node group {group.name} has", "/".join(existing.instance_types)
        if kind not in ("", "/".join(group.types)):
            field = "fallbacks" if existing.instance_types[0] == group.instance_type else "instance_type"
            found.append(f"{part}.{field}: {described} {kind} and cannot change: {other}")
        if (existing.market == "SPOT") != group.spot:
            found.append(f"{part}.spot: {described} nodes {existing.market} and cannot change: {other}")
    return found


def known_zones(file: ClusterFile, world: World) -> tuple[str, ...]:
    """Return the availability zones of cluster or file, the nodes' first; empty if neither has any."""
    if world.cluster is not None and world.cluster.tags.get(names.ZONES_TAG):
        return tuple(world.cluster.tags[names.ZONES_TAG].split())
    return tuple(file.zones or ())
