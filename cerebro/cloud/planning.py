"""What is left to do, from what is wanted and what is there. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.names import CLUSTER_TAG, CONTROL_GROUP, ZONES_TAG, cluster_stack
from cerebro.cloud.steps import Removal, Step
from cerebro.cloud.world import Condition, World, group_condition, stack_condition


def next_step(steps: Sequence[Step], world: World) -> Step | None:
    """The first part that is not there as wanted; None if all are."""
    return next((step for step in steps if not step.is_done(world)), None)


def plan(steps: Sequence[Step], world: World) -> Iterator[tuple[Step, World]]:
    """The steps that are left, each with the world it will find: what creation does if nothing fails."""
    while (step := next_step(steps, world)) is not None:
        yield step, world
        world = step.after(world)


def removals(parts: Sequence[Removal], world: World) -> list[Removal]:
    """The parts of which anything is left, in order."""
    return [part for part in parts if part.is_there(world)]


def conflicts(file: ClusterFile, world: World) -> list[str]:
    """What the file wants that cannot be had by changing what is there; empty if creation may go on."""
    cluster, found = world.cluster, []
    if cluster is None:
        return []
    is_ours = cluster.tags.get(CLUSTER_TAG) == file.name or cluster_stack(file.name) in world.stacks
    if not is_ours:
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
    for name, (field, instance_type, spot) in wanted.items():
        there = world.groups.get(name)
        # One that failed is made anew, with whatever the file says now.
        if there is None or group_condition(there, "CREATE_COMPLETE") is Condition.BROKEN:
            continue
        if there.instance_types and there.instance_types != (instance_type,):
            found.append(
                f"{field}.instance_type: node group {name} has {'/'.join(there.instance_types)} and cannot change: "
                + (
                    "write that"
                    if name == CONTROL_GROUP
                    else "give the group another name, and delete the old one"
                )
            )
        if there.is_spot != spot:
            kind = "spot" if there.is_spot else "on demand"
            found.append(
                f"{field}.spot: node group {name} exists {kind} and cannot change: give it another name"
            )
    return found


def surplus_groups(file: ClusterFile, world: World) -> list[str]:
    """Node groups of the cluster that the file does not name; they are left alone, and cost money."""
    return sorted(set(world.groups) - {CONTROL_GROUP, *(group.name for group in file.workers)})


def is_settled(world: World) -> bool:
    """Whether nothing is on its way: no stack changes."""
    return all(stack_condition(status) is not Condition.CHANGING for status in world.stacks.values())


def known_zones(file: ClusterFile, world: World) -> tuple[str, ...]:
    """Availability zones, the one of the nodes first, as far as cluster or file say; empty: to be chosen."""
    if world.cluster is not None and world.cluster.tags.get(ZONES_TAG):
        return tuple(world.cluster.tags[ZONES_TAG].split())
    return tuple(file.zones or ())
