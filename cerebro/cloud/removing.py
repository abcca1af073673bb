"""How a cluster is removed: part by part, what holds on to the network before the network.

Objects inside the cluster are deleted so that their controllers remove what belongs to them on AWS. Controllers may be
dead by then, or paused, so afterwards the same things are looked for on AWS, by their tags. Every part is safe to
remove twice, and after a half-made creation.
"""

from __future__ import annotations

from cerebro.cloud import inventory
from cerebro.cloud.aws import AwsError
from cerebro.cloud.names import (
    CLUSTER_TAG,
    GPU_PLUGIN,
    MONITORING,
    MONITORING_NAMESPACE,
    NAMESPACE,
    PLATFORM,
    cluster_stack,
    mounts_stack,
    owned_tag,
    storage_stack,
)
from cerebro.cloud.site import Site, Step
from cerebro.cloud.world import Condition, World
from cerebro.errors import ProvisionError

_TIMEOUT = ("--timeout", "5m")


def removal() -> list[Step]:
    """In the order in which they are removed."""
    return [
        *(_release(name, release) for name, release in _RELEASES.items()),
        Step(
            name="load balancers and volumes inside the cluster",
            is_needed=lambda world: (
                world.kube is not None and bool(world.kube.balancers or world.kube.claims)
            ),
            take=_empty,
        ),
        Step(
            name="load balancers",
            is_needed=lambda world: bool(_ids(world, inventory.BALANCER, inventory.CLASSIC_BALANCER)),
            take=_remove_balancers,
        ),
        Step(
            name="file system",
            is_needed=lambda world: world.file_system is not None or bool(_storage_stacks(world)),
            take=_remove_file_system,
        ),
        Step(name="control plane", is_needed=lambda world: world.cluster is not None, take=delete_cluster),
        Step(
            name="CloudFormation stacks",
            is_needed=lambda world: bool(_eksctl_stacks(world)),
            take=delete_eksctl_stacks,
        ),
        Step(
            name="volumes", is_needed=lambda world: bool(_ids(world, inventory.VOLUME)), take=_remove_volumes
        ),
        Step(
            name="log groups",
            is_needed=lambda world: bool(_ids(world, inventory.LOG_GROUP)),
            take=_remove_log_groups,
        ),
    ]


def _ids(world: World, *kinds: str) -> list[str]:
    return [resource.id for resource in world.resources if resource.kind in kinds]


# --- inside the cluster --------------------------------------------------------------------------

_RELEASES = {
    "platform": (PLATFORM, NAMESPACE),
    "monitoring": (MONITORING, MONITORING_NAMESPACE),
    "GPU device plugin": (GPU_PLUGIN, "kube-system"),
}


def _release(name: str, release: tuple[str, str]) -> Step:
    def remove(site: Site, _: World) -> None:
        # Not --wait: nodes may be gone, and what pods leave behind goes with the cluster.
        site.helm("uninstall", release[0], "--namespace", release[1], *_TIMEOUT)

    def is_there(world: World) -> bool:
        return world.kube is not None and release[0] in world.kube.releases

    return Step(name=name, is_needed=is_there, take=remove)


def _empty(site: Site, world: World) -> None:
    """Delete services and ingresses with load balancers, and the claims of volumes; the controllers follow."""
    assert world.kube is not None, "is_needed says so"
    for kind, namespace, name in world.kube.balancers:
        site.kubectl("delete", kind, name, "-n", namespace, "--ignore-not-found", *_TIMEOUT)
    if world.kube.claims:
        # Namespaces, not claims: a claim goes only when the pods that use it have gone.
        site.kubectl("delete", "namespace", NAMESPACE, MONITORING_NAMESPACE, "--ignore-not-found", *_TIMEOUT)


# --- AWS -----------------------------------------------------------------------------------------


def _remove_balancers(site: Site, world: World) -> None:
    """With their security groups: they would keep the network from being deleted."""
    for arn in _ids(world, inventory.BALANCER):
        site.aws.change("elbv2", "delete_load_balancer", LoadBalancerArn=arn)
    for name in _ids(world, inventory.CLASSIC_BALANCER):
        site.aws.change("elb", "delete_load_balancer", LoadBalancerName=name)
    # k8s-*: not EKS's own, which EKS deletes.
    _remove_security_groups(site, f"tag:{owned_tag(world.name)}", "owned", "k8s-*")


def _remove_security_groups(site: Site, tag: str, value: str, pattern: str) -> None:
    filters = [{"Name": tag, "Values": [value]}, {"Name": "group-name", "Values": [pattern]}]
    for group in site.aws.find(
        "ec2", "describe_security_groups", "SecurityGroups[].GroupId", Filters=filters
    ):
        try:
            site.aws.change("ec2", "delete_security_group", GroupId=group)
        except (
            AwsError
        ) as problem:  # in use until interfaces are gone; the network's stack tells if that lasts
            site.show(f"  {problem}")


def _storage_stacks(world: World) -> list[str]:
    both = (mounts_stack(world.name), storage_stack(world.name))
    return [stack for stack in both if stack in world.stacks]


def unmount(site: Site, world: World) -> None:
    """Remove what ties the file system to the cluster's network. Data stay."""
    delete_stacks(site, [stack for stack in _storage_stacks(world) if stack == mounts_stack(world.name)])
    system = world.file_system
    if system is None or system.is_of_stack:
        return
    found = "MountTargets[?LifeCycleState != 'deleting'].MountTargetId[]"
    for target in site.aws.find("efs", "describe_mount_targets", found, FileSystemId=system.id):
        site.aws.change("efs", "delete_mount_target", MountTargetId=target)
    site.aws.wait("efs", "MountTargetsGone", FileSystemId=system.id)
    _remove_security_groups(site, f"tag:{CLUSTER_TAG}", world.name, f"cerebro-{world.name}-efs")


def _remove_file_system(site: Site, world: World) -> None:
    """Its data are gone with it."""
    unmount(site, world)
    system = world.file_system
    if system is not None:
        points = "AccessPoints[].AccessPointId"
        for point in site.aws.find("efs", "describe_access_points", points, FileSystemId=system.id):
            site.aws.change("efs", "delete_access_point", AccessPointId=point)
        if not system.is_of_stack and system.state != "deleting":
            site.aws.change("efs", "delete_file_system", FileSystemId=system.id)
    delete_stacks(site, [stack for stack in _storage_stacks(world) if stack == storage_stack(world.name)])


def delete_cluster(site: Site, world: World) -> None:
    """Delete it by eksctl, with all that eksctl made for it."""
    if world.cluster_condition() is Condition.CHANGING:
        site.settled(world, with_groups=False)
    site.eksctl(
        "delete", "cluster", "--name", world.name, "--region", site.file.region,
        # force: on although nodes do not drain; there is nothing left that would need them
        "--wait", "--force", "--disable-nodegroup-eviction", "--timeout", "45m",
    )  # fmt: skip


def _eksctl_stacks(world: World) -> list[str]:
    return sorted(set(world.stacks) - set(_storage_stacks(world)))


def delete_eksctl_stacks(site: Site, world: World) -> None:
    """What eksctl left: all but the cluster's own stack, which the others need; then that one."""
    base = cluster_stack(world.name)
    delete_stacks(site, [stack for stack in _eksctl_stacks(world) if stack != base])
    delete_stacks(site, [base] if base in world.stacks else [])


def delete_stacks(site: Site, names: list[str]) -> None:
    """Delete CloudFormation stacks and wait until they are gone.

    Raises:
        ProvisionError: one could not be deleted; the message has CloudFormation's reason.
    """
    for name in names:
        site.aws.change("cloudformation", "delete_stack", StackName=name)
    for name in names:
        site.aws.wait("cloudformation", "StackSettled", StackName=name)
    left = site.observe().stacks if names and not site.is_dry else {}
    for name in (name for name in names if name in left):
        seen = site.aws.look("cloudformation", "describe_stacks", StackName=name)["Stacks"][0]
        reason = seen.get("StackStatusReason", "no reason given")
        raise ProvisionError(f"stack {name} could not be deleted ({left[name]}): {reason}")


def _remove_volumes(site: Site, world: World) -> None:
    """Disks of pods that no node holds: their data are gone."""
    for id_ in _ids(world, inventory.VOLUME):
        try:
            site.aws.change("ec2", "delete_volume", VolumeId=id_)
        except AwsError as problem:
            if not problem.is_absence:
                raise


def _remove_log_groups(site: Site, world: World) -> None:
    """CloudWatch keeps logs for ever unless told otherwise."""
    for name in _ids(world, inventory.LOG_GROUP):
        site.aws.change("logs", "delete_log_group", logGroupName=name)
