"""How a cluster is made: a list of steps, each safe to take twice.

A step says from the world whether it is needed, and makes what is missing. What AWS has under way is waited for before
a step is taken (`Site.settled`). ``eksctl create cluster`` makes several parts in one go; what it had not made when it
failed is made here by other means, because it cannot be given twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from cerebro.cloud import manifests
from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.manifests import NETWORK_ADDONS, WORKLOAD_ADDONS, Wanted, wanted_identities
from cerebro.cloud.names import (
    CONTROL_GROUP,
    FINGERPRINT,
    addon_stack_prefix,
    cluster_stack,
    group_stack,
    is_identity_stack,
    mounts_stack,
    storage_stack,
)
from cerebro.cloud.observing import DESCRIPTION
from cerebro.cloud.removing import delete_cluster, delete_eksctl_stacks, delete_stacks, unmount
from cerebro.cloud.site import Site, Step
from cerebro.cloud.world import Cluster, Condition, World, stack_condition
from cerebro.errors import ProvisionError

# The device plugin is a release of ours, with a version that we choose.
_CREATION = ("--install-nvidia-plugin=false", "--timeout", "45m")
_NEVER_MADE = ("CREATE_FAILED", "ROLLBACK_")
_UNFINISHED_FIRST = ("pending-install", "uninstalling")
_UNFINISHED_LATER = ("pending-upgrade", "pending-rollback")


def creation(file: ClusterFile, chart: Path) -> list[Step]:
    """In the order in which they are made; each needs those before it."""
    network, workload = _addons(NETWORK_ADDONS), _addons(WORKLOAD_ADDONS)
    is_not_there = (Condition.ABSENT, Condition.BROKEN)
    by_eksctl = [
        # Nodes without a network never become ready. These are daemons: there as soon as EKS has them.
        ("network addons", lambda world: bool(_lacking(world, NETWORK_ADDONS, is_not_there)), network),
        ("node groups", lambda world: _lacks_nodes(file, world), make_node_groups),
        ("addons", lambda world: bool(_lacking(world, WORKLOAD_ADDONS)), workload),
        ("identities", lambda world: not wanted_identities(file) <= world.identities, _make_identities),
        ("kubeconfig", lambda world: not world.has_kubeconfig, write_kubeconfig),
    ]  # fmt: skip
    steps = [
        Step(name=name, is_needed=is_needed, take=take, comes_with_cluster=True)
        for name, is_needed, take in by_eksctl
    ]
    return [
        Step(
            name="control plane",
            is_needed=lambda world: world.cluster_condition() is not Condition.READY,
            take=_make_control_plane,
        ),
        *steps,
        Step(name="file system", is_needed=_lacks_file_system, take=_make_file_system),
        Step(name="storage classes", is_needed=lambda world: _lacks_classes(file, world), take=_make_classes),
        *(_release(name, manifests.release(file, key, chart)) for key, name in manifests.releases(file).items()),
    ]  # fmt: skip


# --- the control plane ---------------------------------------------------------------------------


def _make_control_plane(site: Site, world: World) -> None:
    if world.cluster_condition() is Condition.BROKEN:
        _clear(site, world)
    path = site.write_configuration("eksctl.yaml")
    site.eksctl("create", "cluster", "-f", path, "--kubeconfig", str(site.kubeconfig), *_CREATION)


def _clear(site: Site, world: World) -> None:
    """Remove what a failed attempt left; a cluster that has ever run stays, and the file system in any case."""
    stack = world.stacks.get(cluster_stack(world.name), "")
    if world.cluster is not None and world.cluster.status != "FAILED" and not stack.startswith(_NEVER_MADE):
        raise ProvisionError(
            f"the control plane exists ({world.cluster.status}), but its stack is {stack or 'missing'}. Nothing is "
            "removed, because there may be data in it: look with `eksctl utils describe-stacks "
            f"{' '.join(site.place)}`, or remove all with `cerebro cluster delete`"
        )
    site.show("  an earlier attempt has failed: removing what it left")
    unmount(site, world)  # mount targets would keep the network from being deleted
    if world.cluster is not None:
        delete_cluster(site, world)
    delete_eksctl_stacks(site, site.observe())


def write_kubeconfig(site: Site, world: World) -> None:
    """A kubeconfig of its own in the cluster's folder; the user's is not touched."""
    place = ("--name", world.name, "--region", site.file.region, "--alias", world.name)
    site.runner.change("aws", "eks", "update-kubeconfig", *place, "--kubeconfig", str(site.kubeconfig))


# --- addons and identities: roles whose addon or identity is missing are removed, their stacks would be in the way ---


def _lacking(
    world: World,
    members: Iterable[str],
    conditions: Collection[Condition] = (Condition.ABSENT, Condition.BROKEN, Condition.CHANGING),
) -> list[str]:
    return [name for name in members if world.addon_condition(name) in conditions]


def _addons(members: tuple[str, ...]) -> Callable[[Site, World], None]:
    def make(site: Site, world: World) -> None:
        missing = _lacking(world, members, (Condition.ABSENT, Condition.BROKEN))
        for name in (name for name in missing if name in world.addons):
            site.eksctl("delete", "addon", *site.place, "--name", name)
            site.aws.wait("eks", "AddonSettled", clusterName=world.name, addonName=name)
        if missing:
            prefixes = tuple(addon_stack_prefix(world.name, name) for name in missing)
            delete_stacks(site, [stack for stack in sorted(world.stacks) if stack.startswith(prefixes)])
            path = site.write_configuration("eksctl-addons.yaml", addons=missing, identities=())
            site.eksctl("create", "addon", "-f", path)
        if members == WORKLOAD_ADDONS:
            for name in members:
                site.aws.wait("eks", "AddonSettled", clusterName=world.name, addonName=name)

    return make


def _make_identities(site: Site, world: World) -> None:
    """Service accounts that may read the buckets of the file: no keys, no secrets."""
    missing = sorted(wanted_identities(site.file) - world.identities)
    stacks = [
        stack
        for stack in sorted(world.stacks)
        if any(is_identity_stack(world.name, stack, account) for account in missing)
    ]
    delete_stacks(site, stacks)
    path = site.write_configuration("eksctl-identities.yaml", addons=(), identities=missing)
    site.eksctl("create", "podidentityassociation", "-f", path)


# --- nodes ---------------------------------------------------------------------------------------


def _counts(file: ClusterFile) -> dict[str, int]:
    return {CONTROL_GROUP: 1, **{group.name: group.count for group in file.workers}}


def _lacks_nodes(file: ClusterFile, world: World) -> bool:
    return any(
        world.group_condition(name) is not Condition.READY or world.groups[name].desired != count
        for name, count in _counts(file).items()
    )


def make_node_groups(site: Site, world: World) -> None:
    """Remove groups that failed, make those that are missing, scale the rest to what the file says."""
    counts = _counts(site.file)
    for name in [name for name in counts if world.group_condition(name) is Condition.BROKEN]:
        _remove_group(site, world, name)
        world = site.observe()
    missing = [name for name in counts if world.group_condition(name) is Condition.ABSENT]
    if missing:
        path = site.write_configuration("eksctl.yaml")
        site.eksctl("create", "nodegroup", "-f", path, "--include", ",".join(missing), *_CREATION)
    scale(site, world, {name: count for name, count in counts.items() if name not in missing})


def scale(site: Site, world: World, counts: Mapping[str, int]) -> None:
    """Set the number of nodes of groups that exist, and wait until EKS has done so.

    Raises:
        ProvisionError: it has not within half an hour, as when there is no capacity in the zone.
    """
    there = {name: count for name, count in counts.items() if name in world.groups}
    wrong = {name: count for name, count in there.items() if world.groups[name].desired != count}
    for name, count in wrong.items():
        most = max(1, count, _counts(site.file).get(name, 0)) + (name == CONTROL_GROUP)
        sizes = {"minSize": 0, "desiredSize": count, "maxSize": most}
        site.aws.change(
            "eks", "update_nodegroup_config", clusterName=world.name, nodegroupName=name, scalingConfig=sizes
        )
    for name in wrong:
        site.aws.wait("eks", "NodegroupSettled", clusterName=world.name, nodegroupName=name)


def _remove_group(site: Site, world: World, name: str) -> None:
    """By its stack, whatever state that is in."""
    problems = world.groups[name].problems if name in world.groups else ()
    said = "".join(f"\n    {problem}" for problem in problems)
    site.show(f"  node group {name} has failed before: removing it{said}")
    delete_stacks(site, [group_stack(world.name, name)])
    if name in site.observe().groups and not site.is_dry:
        raise ProvisionError(
            f"node group {name} has failed and cannot be removed: look at it with "
            f"`eksctl get nodegroup {' '.join(site.place)}`"
        )


# --- storage -------------------------------------------------------------------------------------


def _lacks_file_system(world: World) -> bool:
    system, cluster = world.file_system, world.cluster or Cluster(status="")
    return system is None or system.state != "available" or system.num_mounted < max(1, len(cluster.subnets))


def _make_file_system(site: Site, world: World) -> None:
    """EFS with a mount target per zone. Its own stack is apart from theirs: they are made again, data are not."""
    name, throughput = world.name, site.file.storage.efs_throughput
    if world.file_system is None:
        _make_stack(site, world, storage_stack(name), "storage-stack.yaml", Name=name, Throughput=throughput)
        world = site.observe()
    if not site.is_dry and (world.cluster is None or world.file_system is None):
        raise ProvisionError("cluster or file system has gone meanwhile: give the same command again")
    unmount(site, world)
    cluster = world.cluster or Cluster(status="", subnets=("<subnet 1>", "<subnet 2>"))
    subnets = {f"Subnet{number}": subnet for number, subnet in enumerate(cluster.subnets, 1)}
    _make_stack(
        site, site.observe(), mounts_stack(name), "mounts-stack.yaml", **subnets,
        Name=name, FileSystem=world.file_system.id if world.file_system else "<file system>",
        Network=cluster.network or "<vpc>", Nodes=cluster.security_group or "<security group>",
    )  # fmt: skip


def _make_stack(site: Site, world: World, stack: str, template: str, **parameters: str) -> None:
    if stack in world.stacks:  # it failed, or what it made has been removed by hand
        delete_stacks(site, [stack])
    site.aws.change(
        "cloudformation", "create_stack", StackName=stack, TemplateBody=manifests.text(template),
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
        Tags=[{"Key": key, "Value": value} for key, value in site.file.all_tags.items()],
    )  # fmt: skip
    site.aws.wait("cloudformation", "StackSettled", StackName=stack)
    status = site.observe().stacks.get(stack)
    if stack_condition(status) is not Condition.READY and not site.is_dry:
        raise ProvisionError(
            f"stack {stack} could not be made ({status}): its events say why: aws cloudformation "
            f"describe-stack-events --stack-name {stack} --region {site.file.region}"
        )


def _lacks_classes(file: ClusterFile, world: World) -> bool:
    if world.kube is None or world.file_system is None:
        return True
    wanted = [made["metadata"] for made in manifests.storage_classes(file, world.file_system.id)]
    there = world.kube.storage_classes
    return any(there.get(made["name"]) != made["annotations"][FINGERPRINT] for made in wanted)


def _make_classes(site: Site, world: World) -> None:
    """Replaced, not applied: parameters of a class cannot be changed. Volumes stay."""
    id_ = world.file_system.id if world.file_system is not None else "<file system>"
    path = site.write("storage.yaml", manifests.storage_classes(site.file, id_))
    site.kubectl("replace", "--force", "-f", str(path))


# --- releases ------------------------------------------------------------------------------------


def _release(name: str, wanted: Wanted) -> Step:
    """One that was interrupted is locked by helm and never gets well by itself: it is rolled back or uninstalled."""

    def is_needed(world: World) -> bool:
        there = world.kube.releases.get(wanted.name) if world.kube is not None else None
        return there is None or there.status != "deployed" or there.mark != wanted.mark

    def take(site: Site, world: World) -> None:
        there = world.kube.releases.get(wanted.name) if world.kube is not None else None
        at = (wanted.name, "--namespace", wanted.namespace)
        if there is not None and there.status in _UNFINISHED_FIRST:
            site.helm("uninstall", *at, "--wait", "--timeout", "5m")
        elif there is not None and there.status in _UNFINISHED_LATER:
            site.helm("rollback", *at, "--wait", "--timeout", wanted.timeout)
        path = site.write(f"values-{wanted.name}.yaml", dict(wanted.values))
        site.helm(
            "upgrade", "--install", wanted.name, *wanted.chart,
            "--namespace", wanted.namespace, "--create-namespace", "--values", str(path),
            "--description", f"{DESCRIPTION}{wanted.mark}", "--wait", "--timeout", wanted.timeout,
        )  # fmt: skip

    return Step(name=name, is_needed=is_needed, take=take)
