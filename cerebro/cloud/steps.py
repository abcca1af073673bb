"""How a cluster is made and removed: steps that look at what there is, do what is left, and may be taken twice.

eksctl makes control plane, addons and node groups, one command each: so what a failed or interrupted command did not
make is made by the same step again. One stack of CloudFormation holds the rest on AWS. What AWS has under way is waited
for before a step is taken (`Site.settled`).

Removal begins inside the cluster, so that controllers remove what they made on AWS. They may be dead by then, or
paused, so afterwards the same things are looked for on AWS, by their tags. What holds on to the network goes first.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from cerebro.cloud import manifests, names
from cerebro.cloud.site import Site
from cerebro.cloud.world import World
from cerebro.errors import ProvisionError

Step: TypeAlias = Callable[[Site, World], None]
"""Makes or removes a part of a cluster, if anything is left to do, and returns when that is done; or raises
ProvisionError, and goes on when taken again."""

DESCRIPTION = "cerebro "
"""Begins the description of a release that we made; its fingerprint follows."""
_TIMEOUT = ("--timeout", "45m")
_NEVER_MADE = ("CREATE_FAILED", "ROLLBACK_")
_EKSCTL = "eksctl-"
"""Begins the names of eksctl's stacks; the cluster's others are ours."""


def creation(site: Site) -> dict[str, Step]:
    """By name, in the order in which they are taken; each needs those before it."""
    releases = manifests.releases(site.file, site.chart).items()
    return {
        "control plane": make_control_plane,
        "node groups": make_node_groups,
        "addons": make_addons,
        "kubeconfig": Site.write_kubeconfig,
        "file system and roles": make_stack,
        "storage classes": make_classes,
        **{title: partial(make_release, release) for title, release in releases},
    }


def make_control_plane(site: Site, world: World) -> None:
    """With the network, and the addons without which nodes never become ready."""
    stack, status = names.cluster_stack(world.name), world.cluster.status if world.cluster is not None else ""
    if status in ("ACTIVE", "UPDATING") and world.is_stack_ready(stack):
        return
    if world.cluster is not None or stack in world.stacks:
        _clear(site, world)
    path = site.write("eksctl-cluster.yaml", manifests.configuration(site.file, site.zones, is_whole=False))
    site.change("eksctl", "create", "cluster", "-f", path, "--kubeconfig", str(site.kubeconfig), *_TIMEOUT)


def _clear(site: Site, world: World) -> None:
    """Remove what a failed attempt left; a cluster that has ever run stays, and the file system in any case."""
    name, cluster = world.name, world.cluster
    stack = world.stacks.get(names.cluster_stack(name), "")
    if cluster is not None and cluster.status != "FAILED" and not stack.startswith(_NEVER_MADE):
        raise ProvisionError(
            f"the control plane exists ({cluster.status}), but its stack is {stack or 'missing'}. Nothing is "
            "removed, because there may be data in it: look with `eksctl utils describe-stacks "
            f"--cluster {name} --region {site.file.region}`, or remove all with `cerebro cluster delete`"
        )
    site.show("  an earlier attempt has failed: removing what it left")
    if names.own_stack(name) in world.stacks:  # mount targets would keep the network from being deleted
        _deploy(site, manifests.stack_parameters(site.file, site.zones, is_attached=False))
    if cluster is not None:
        delete_cluster(site, world)
    delete_eksctl_stacks(site, site.observe())


def make_node_groups(site: Site, world: World) -> None:
    """Remove groups that failed, make those that are missing, scale the rest to what the file says."""
    for name in site.file.counts:
        there, stack = world.groups.get(name), names.group_stack(world.name, name)
        if there.has_failed if there is not None else stack in world.stacks:
            problems = there.problems if there is not None else []
            site.show("\n    ".join([f"  node group {name} has failed before: removing it", *problems]))
            delete_stacks(site, [stack])
            world = site.observe()
            if name in world.groups and not site.is_dry:
                raise ProvisionError(f"node group {name} cannot be removed: {world.groups[name].problems}")
    if set(site.file.counts) - set(world.groups):  # eksctl leaves out those that there are
        path = site.write("eksctl.yaml", manifests.configuration(site.file, site.zones))
        # The device plugin is a release of ours, with a version that we choose.
        site.change("eksctl", "create", "nodegroup", "-f", path, "--install-nvidia-plugin=false", *_TIMEOUT)
    scale(site, world, site.file.counts)


def scale(site: Site, world: World, counts: Mapping[str, int]) -> None:
    """Set the number of nodes of groups that exist, and wait until EKS has done so.

    Raises:
        ProvisionError: it has not in time.
    """
    wrong = [name for name in counts if name in world.groups and world.groups[name].desired != counts[name]]
    for name in wrong:
        most = max(1, counts[name], site.file.counts.get(name, 0)) + (name == names.CONTROL_GROUP)
        sizes = f"minSize=0,maxSize={most},desiredSize={counts[name]}"
        group = ("--cluster-name", world.name, "--nodegroup-name", name)
        site.change("aws", "eks", "update-nodegroup-config", *group, "--scaling-config", sizes)
    for name in wrong:
        site.wait("eks", "nodegroup_active", clusterName=world.name, nodegroupName=name)


def make_addons(site: Site, world: World) -> None:
    """eksctl leaves out those that there are; roles whose addon is missing would be in its way."""
    there = [name for name, status in world.addons.items() if status != "CREATE_FAILED"]
    if missing := sorted(set(manifests.ADDONS) - set(there)):
        prefixes = tuple(names.addon_stack_prefix(world.name, name) for name in missing)
        delete_stacks(site, [stack for stack in sorted(world.stacks) if stack.startswith(prefixes)])
        path = site.write("eksctl.yaml", manifests.configuration(site.file, site.zones))
        site.change("eksctl", "create", "addon", "-f", path)


def make_stack(site: Site, world: World) -> None:
    """Create or update our stack."""
    stack = names.own_stack(world.name)
    parameters = manifests.stack_parameters(site.file, site.zones)
    if world.is_stack_ready(stack) and world.mark == manifests.stack_fingerprint(site.file, parameters):
        return
    status = world.stacks.get(stack, "")
    if status.startswith("DELETE_FAILED") and world.file_system:
        kept = f"{world.file_system} may hold data: copy it, then run `cerebro cluster delete`"
        raise ProvisionError(f"a deletion of the stack {stack} has failed, and its file system {kept}")
    if status.startswith((*_NEVER_MADE, "DELETE_FAILED")):  # it can only be deleted
        delete_stacks(site, [stack])
    _deploy(site, parameters)


def _deploy(site: Site, parameters: Mapping[str, str]) -> None:
    """By change set; CloudFormation rolls back what fails."""
    tags = {**site.file.all_tags, names.FINGERPRINT: manifests.stack_fingerprint(site.file, parameters)}
    site.change(
        "aws", "cloudformation", "deploy", "--stack-name", names.own_stack(site.file.name),
        "--template-file", str(manifests.STACK),
        "--capabilities", "CAPABILITY_IAM", "--no-fail-on-empty-changeset",
        "--parameter-overrides", *(f"{key}={value}" for key, value in parameters.items()),
        "--tags", *(f"{key}={value}" for key, value in tags.items()),
    )  # fmt: skip


def make_classes(site: Site, world: World) -> None:
    """Replaced, not applied: parameters of a class cannot be changed. Volumes stay."""
    if not world.file_system and not site.is_dry:
        stack = names.own_stack(world.name)
        raise ProvisionError(
            f"stack {stack} is there, its file system is not: if its data can be done without, delete the stack "
            f"(aws cloudformation delete-stack --region {site.file.region} --stack-name {stack})"
        )
    made = manifests.storage_classes(site.file, world.file_system or "<file system>")
    found = site.inside(world, "kubectl", "get", "storageclasses", "--request-timeout=15s") or {}
    marks = {each["metadata"]["name"]: each["metadata"].get("annotations") for each in found.get("items", [])}
    wanted = {each["metadata"]["name"]: each["metadata"]["annotations"][names.FINGERPRINT] for each in made}
    if any((marks.get(name) or {}).get(names.FINGERPRINT) != mark for name, mark in wanted.items()):
        site.change("kubectl", "replace", "--force", "-f", site.write("storage.yaml", made))


def make_release(wanted: manifests.Wanted, site: Site, world: World) -> None:
    """One whose command was interrupted is locked by helm for ever: it is uninstalled or rolled back first."""
    at = (wanted.name, "--namespace", wanted.namespace)
    history = site.inside(world, "helm", "history", *at, "--max", "1") or [{"status": "", "description": ""}]
    status, mark = history[-1]["status"], f"{DESCRIPTION}{wanted.mark}"
    if status == "deployed" and history[-1].get("description") == mark:
        return
    if status in ("pending-install", "uninstalling"):
        site.change("helm", "uninstall", *at, "--wait", "--timeout", "5m")
    elif status in ("pending-upgrade", "pending-rollback"):
        site.change("helm", "rollback", *at, "--wait", "--timeout", wanted.timeout)
    values = site.write(f"values-{wanted.name}.yaml", dict(wanted.values))
    site.change(
        "helm", "upgrade", "--install", wanted.name, *wanted.chart, "--namespace", wanted.namespace,
        "--create-namespace", "--values", values, "--description", mark, "--wait", "--timeout", wanted.timeout,
    )  # fmt: skip


# --- removal --------------------------------------------------------------------------------------


def removal() -> dict[str, Step]:
    """By name, in the order in which they are taken."""
    return {
        "what is inside the cluster": _empty,
        "load balancers": _remover("load balancer", "classic load balancer"),
        "file system and roles": _delete_own_stacks,
        "security groups of load balancers": _remover("security group of load balancers"),
        "control plane": delete_cluster,
        "CloudFormation stacks": delete_eksctl_stacks,
        "volumes": _remover("volume"),
        "log groups": _remover("log group"),
    }


def _empty(site: Site, world: World) -> None:
    """Namespaces, not claims: the claim of a disk goes only when the pods that use it have gone."""
    if world.cluster is None or world.cluster.status != "ACTIVE":
        return
    site.write_kubeconfig(world)
    namespaces = (names.NAMESPACE, names.MONITORING_NAMESPACE)
    site.change("kubectl", "delete", "namespace", *namespaces, "--ignore-not-found", "--timeout", "10m")


def _remover(*kinds: str) -> Step:
    def remove(site: Site, world: World) -> None:
        problem: ProvisionError | None = None
        for resource in world.resources:
            if resource.kind in kinds:
                try:
                    site.runner.change(*shlex.split(resource.remove))
                except (
                    ProvisionError
                ) as failed:  # gone already, or in use: the others are removed all the same
                    problem = failed
        if problem is not None:
            raise problem

    return remove


def _delete_own_stacks(site: Site, world: World) -> None:
    """Delete our stack, with the file system."""
    if world.file_system:
        points = "AccessPoints[].AccessPointId"  # made by the driver; they would keep the file system
        for point in site.aws.find("efs", "describe_access_points", points, FileSystemId=world.file_system):
            with suppress(ProvisionError):  # the driver may have been faster; one that stays keeps the stack
                site.change("aws", "efs", "delete-access-point", "--access-point-id", point)
    for stack in sorted(stack for stack in world.stacks if not stack.startswith(_EKSCTL)):
        delete_stacks(site, [stack])


def delete_cluster(site: Site, world: World) -> None:
    """Delete it by eksctl, with all that eksctl made for it."""
    if world.cluster is None:
        return
    site.wait_for_stack(
        world, names.cluster_stack(world.name)
    )  # EKS deletes nothing that is still being made
    site.change(
        "eksctl", "delete", "cluster", "--name", world.name, "--region", site.file.region,
        # force: on although nodes do not drain; there is nothing left that would need them
        "--wait", "--force", "--disable-nodegroup-eviction", "--timeout", "45m",
    )  # fmt: skip


def delete_eksctl_stacks(site: Site, world: World) -> None:
    """What eksctl left: all but the cluster's own stack, which the others need; then that one."""
    base = names.cluster_stack(world.name)
    left = sorted(stack for stack in world.stacks if stack.startswith(_EKSCTL))
    delete_stacks(site, [stack for stack in left if stack != base])
    delete_stacks(site, [stack for stack in left if stack == base])


def delete_stacks(site: Site, stacks: list[str]) -> None:
    """Delete CloudFormation stacks and wait until they are gone.

    Raises:
        ProvisionError: one could not be deleted; the message has CloudFormation's reason.
    """
    for name in stacks:
        site.change("aws", "cloudformation", "delete-stack", "--stack-name", name)
    for name in stacks:
        site.wait("cloudformation", "stack_delete_complete", StackName=name)
    left = site.observe().stacks if stacks and not site.is_dry else {}
    for name in (name for name in stacks if name in left):
        seen = site.aws.look("cloudformation", "describe_stacks", StackName=name)["Stacks"][0]
        reason = seen.get("StackStatusReason", "no reason given")
        raise ProvisionError(f"stack {name} could not be deleted ({left[name]}): {reason}")
