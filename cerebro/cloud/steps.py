"""Steps that create and remove a cluster. Each reads the state, makes the missing parts, and can be repeated.

`actions` runs them in order and reports failures.

eksctl makes control plane, addons and node groups, with one command each, so a repeated step makes what a failed
command did not. One CloudFormation stack has the other AWS resources. Before each step `Site.settled` waits for AWS's
own changes.

Removal begins inside the cluster, so that controllers remove their AWS resources. They may be dead or paused, so the
same resources are then searched on AWS by their tags. Resources that block the network's deletion go first.
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
"""Creates or removes a part of a cluster, if needed, and returns when that is done. A ProvisionError can be resumed by
repeating the step.
"""

DESCRIPTION = "cerebro "
"""Prefix of the description of Cerebro's releases; a fingerprint follows."""
_TIMEOUT = ("--timeout", "45m")
_NEVER_MADE = ("CREATE_FAILED", "ROLLBACK_")
_EKSCTL = "eksctl-"
"""Prefix of eksctl's stacks; the cluster's other stacks are Cerebro's."""


def creation(site: Site) -> dict[str, Step]:
    """Return name -> step of a creation, in order; each needs the steps before it."""
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
    """Create control plane, network, and the addons that nodes need to become ready."""
    stack, status = names.cluster_stack(world.name), world.cluster.status if world.cluster is not None else ""
    if status in ("ACTIVE", "UPDATING") and world.is_stack_ready(stack):
        return
    if world.cluster is not None or stack in world.stacks:
        _clear(site, world)
    path = site.write("eksctl-cluster.yaml", manifests.configuration(site.file, site.zones, is_whole=False))
    site.change("eksctl", "create", "cluster", "-f", path, "--kubeconfig", str(site.kubeconfig), *_TIMEOUT)


def _clear(site: Site, world: World) -> None:
    """Remove a failed attempt. A cluster that ever ran and the file system stay."""
    name, cluster = world.name, world.cluster
    stack = world.stacks.get(names.cluster_stack(name), "")
    if cluster is not None and cluster.status != "FAILED" and not stack.startswith(_NEVER_MADE):
        raise ProvisionError(
            f"the control plane exists ({cluster.status}), but its stack is {stack or 'missing'}. Nothing is "
            "removed, because it may contain data: look with `eksctl utils describe-stacks "
            f"--cluster {name} --region {site.file.region}`, or remove everything with `cerebro cluster delete`"
        )
    site.show("  an earlier attempt failed: removing its resources")
    if names.own_stack(name) in world.stacks:  # Mount targets would block the deletion of the network.
        _deploy(site, manifests.stack_parameters(site.file, site.zones, is_attached=False))
    if cluster is not None:
        delete_cluster(site, world)
    delete_eksctl_stacks(site, site.observe())


def make_node_groups(site: Site, world: World) -> None:
    """Remove failed groups, create missing ones, scale the others to the file's sizes."""
    for name in site.file.counts:
        existing, stack = world.groups.get(name), names.group_stack(world.name, name)
        if existing.has_failed if existing is not None else stack in world.stacks:
            problems = existing.problems if existing is not None else []
            site.show("\n    ".join([f"  node group {name} failed earlier: removing it", *problems]))
            delete_stacks(site, [stack])
            world = site.observe()
            if name in world.groups and not site.is_dry:
                raise ProvisionError(f"node group {name} cannot be removed: {world.groups[name].problems}")
    if set(site.file.counts) - set(world.groups):  # eksctl skips existing groups.
        path = site.write("eksctl.yaml", manifests.configuration(site.file, site.zones))
        # Cerebro installs the device plugin, with its own version.
        site.change("eksctl", "create", "nodegroup", "-f", path, "--install-nvidia-plugin=false", *_TIMEOUT)
    scale(site, world, site.file.counts)


def scale(site: Site, world: World, counts: Mapping[str, int]) -> None:
    """Set the number of nodes of existing groups, and wait until EKS is done.

    Raises:
        ProvisionError: EKS was not done in time.
    """
    to_scale = [
        name for name in counts if name in world.groups and world.groups[name].desired != counts[name]
    ]
    for name in to_scale:
        most = max(1, counts[name], site.file.counts.get(name, 0)) + (name == names.CONTROL_GROUP)
        sizes = f"minSize=0,maxSize={most},desiredSize={counts[name]}"
        group = ("--cluster-name", world.name, "--nodegroup-name", name)
        site.change("aws", "eks", "update-nodegroup-config", *group, "--scaling-config", sizes)
    for name in to_scale:
        site.wait("eks", "nodegroup_active", clusterName=world.name, nodegroupName=name)


def make_addons(site: Site, world: World) -> None:
    """Create missing addons. eksctl skips existing ones, and fails on roles of missing ones."""
    existing = [name for name, status in world.addons.items() if status != "CREATE_FAILED"]
    if missing := sorted(set(manifests.ADDONS) - set(existing)):
        prefixes = tuple(names.addon_stack_prefix(world.name, name) for name in missing)
        delete_stacks(site, [stack for stack in sorted(world.stacks) if stack.startswith(prefixes)])
        path = site.write("eksctl.yaml", manifests.configuration(site.file, site.zones))
        site.change("eksctl", "create", "addon", "-f", path)


def make_stack(site: Site, world: World) -> None:
    """Create or update Cerebro's stack."""
    stack = names.own_stack(world.name)
    parameters = manifests.stack_parameters(site.file, site.zones)
    if world.is_stack_ready(stack) and world.mark == manifests.stack_fingerprint(site.file, parameters):
        return
    status = world.stacks.get(stack, "")
    if status.startswith("DELETE_FAILED") and world.file_system:
        advice = f"{world.file_system} may hold data: copy it, then run `cerebro cluster delete`"
        raise ProvisionError(f"a deletion of the stack {stack} has failed, and its file system {advice}")
    if status.startswith((*_NEVER_MADE, "DELETE_FAILED")):  # It can only be deleted.
        delete_stacks(site, [stack])
    _deploy(site, parameters)


def _deploy(site: Site, parameters: Mapping[str, str]) -> None:
    """Deploy by change set; CloudFormation rolls back a failure."""
    tags = {**site.file.all_tags, names.FINGERPRINT: manifests.stack_fingerprint(site.file, parameters)}
    site.change(
        "aws", "cloudformation", "deploy", "--stack-name", names.own_stack(site.file.name),
        "--template-file", str(manifests.STACK),
        "--capabilities", "CAPABILITY_IAM", "--no-fail-on-empty-changeset",
        "--parameter-overrides", *(f"{key}={value}" for key, value in parameters.items()),
        "--tags", *(f"{key}={value}" for key, value in tags.items()),
    )  # fmt: skip


def make_classes(site: Site, world: World) -> None:
    """Replace storage classes whose parameters changed, because they cannot be updated. Volumes stay."""
    if not world.file_system and not site.is_dry:
        stack = names.own_stack(world.name)
        raise ProvisionError(
            f"stack {stack} exists without its file system. If you don't need its data, delete the stack "
            f"(aws cloudformation delete-stack --region {site.file.region} --stack-name {stack})"
        )
    classes = manifests.storage_classes(site.file, world.file_system or "<file system>")
    found = site.query_cluster(world, "kubectl", "get", "storageclasses", "--request-timeout=15s") or {}
    marks = {each["metadata"]["name"]: each["metadata"].get("annotations") for each in found.get("items", [])}
    wanted = {
        each["metadata"]["name"]: each["metadata"]["annotations"][names.FINGERPRINT] for each in classes
    }
    if any((marks.get(name) or {}).get(names.FINGERPRINT) != mark for name, mark in wanted.items()):
        site.change("kubectl", "replace", "--force", "-f", site.write("storage.yaml", classes))


def make_release(wanted: manifests.Wanted, site: Site, world: World) -> None:
    """Install or upgrade a release. Helm locks one whose command was interrupted; it is uninstalled or rolled back
    first.
    """
    release = (wanted.name, "--namespace", wanted.namespace)
    history = site.query_cluster(world, "helm", "history", *release, "--max", "1") or [
        {"status": "", "description": ""}
    ]
    status, mark = history[-1]["status"], f"{DESCRIPTION}{wanted.mark}"
    if status == "deployed" and history[-1].get("description") == mark:
        return
    if status in ("pending-install", "uninstalling"):
        site.change("helm", "uninstall", *release, "--wait", "--timeout", "5m")
    elif status in ("pending-upgrade", "pending-rollback"):
        site.change("helm", "rollback", *release, "--wait", "--timeout", wanted.timeout)
    values = site.write(f"values-{wanted.name}.yaml", dict(wanted.values))
    site.change(
        "helm", "upgrade", "--install", wanted.name, *wanted.chart, "--namespace", wanted.namespace,
        "--create-namespace", "--values", values, "--description", mark, "--wait", "--timeout", wanted.timeout,
    )  # fmt: skip


# --- removal --------------------------------------------------------------------------------------


def removal() -> dict[str, Step]:
    """Return name -> step of a removal, in order."""
    return {
        "contents of the cluster": _empty,
        "load balancers": _remover("load balancer", "classic load balancer"),
        "file system and roles": _delete_own_stacks,
        "security groups of load balancers": _remover("security group of load balancers"),
        "control plane": delete_cluster,
        "CloudFormation stacks": delete_eksctl_stacks,
        "volumes": _remover("volume"),
        "log groups": _remover("log group"),
    }


def _empty(site: Site, world: World) -> None:
    """Delete namespaces rather than volume claims, which wait for their pods."""
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
                except ProvisionError as failed:  # It is gone or in use; remove the others.
                    problem = failed
        if problem is not None:
            raise problem

    return remove


def _delete_own_stacks(site: Site, world: World) -> None:
    """Delete Cerebro's stack, with the file system."""
    if world.file_system:
        points = "AccessPoints[].AccessPointId"  # The driver created them, and they block the file system.
        for point in site.aws.find("efs", "describe_access_points", points, FileSystemId=world.file_system):
            with suppress(ProvisionError):  # The driver may be faster; one that stays blocks the stack.
                site.change("aws", "efs", "delete-access-point", "--access-point-id", point)
    for stack in sorted(stack for stack in world.stacks if not stack.startswith(_EKSCTL)):
        delete_stacks(site, [stack])


def delete_cluster(site: Site, world: World) -> None:
    """Delete the cluster and its resources with eksctl."""
    if world.cluster is None:
        return
    site.wait_for_stack(
        world, names.cluster_stack(world.name)
    )  # EKS deletes nothing that is still being made
    site.change(
        "eksctl", "delete", "cluster", "--name", world.name, "--region", site.file.region,
        # Force: continue although nodes do not drain; nothing needs them any more.
        "--wait", "--force", "--disable-nodegroup-eviction", "--timeout", "45m",
    )  # fmt: skip


def delete_eksctl_stacks(site: Site, world: World) -> None:
    """Delete eksctl's stacks; the cluster's own stack last, because the others need it."""
    base = names.cluster_stack(world.name)
    remaining = sorted(stack for stack in world.stacks if stack.startswith(_EKSCTL))
    delete_stacks(site, [stack for stack in remaining if stack != base])
    delete_stacks(site, [stack for stack in remaining if stack == base])


def delete_stacks(site: Site, stacks: list[str]) -> None:
    """Delete CloudFormation stacks and wait until they are gone.

    Raises:
        ProvisionError: a stack could not be deleted. The message has CloudFormation's reason.
    """
    for name in stacks:
        site.change("aws", "cloudformation", "delete-stack", "--stack-name", name)
    for name in stacks:
        site.wait("cloudformation", "stack_delete_complete", StackName=name)
    remaining = site.observe().stacks if stacks and not site.is_dry else {}
    for name in (name for name in stacks if name in remaining):
        described = site.aws.read("cloudformation", "describe_stacks", StackName=name)["Stacks"][0]
        reason = described.get("StackStatusReason", "no reason given")
        raise ProvisionError(f"stack {name} could not be deleted ({remaining[name]}): {reason}")
