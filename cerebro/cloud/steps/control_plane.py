"""The control plane on EKS with its network, and access to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.eksctl_config import ADDONS, wanted_identities
from cerebro.cloud.names import CLUSTER_TAG, CONTROL_GROUP, cluster_stack, group_stack
from cerebro.cloud.site import Site
from cerebro.cloud.steps.storage import unmount
from cerebro.cloud.world import (
    Cluster,
    Condition,
    NodeGroup,
    Subnet,
    World,
    cluster_condition,
    stack_condition,
)
from cerebro.errors import ProvisionError

LONGEST_CREATION_S = 45 * 60.0
LONGEST_DELETION_S = 45 * 60.0
CREATION_TIMEOUT = ("--timeout", "45m")
_NEVER_MADE = ("CREATE_FAILED", "ROLLBACK_")


@dataclass(frozen=True)
class ControlPlane:
    """``eksctl create cluster`` makes it, and with it, if all goes well, nodes, addons and identities."""

    file: ClusterFile
    name: str = "control plane"

    def is_done(self, world: World) -> bool:
        """Whether EKS and its stack are both well."""
        return self._condition(world) is Condition.READY

    def do(self, site: Site, world: World) -> None:
        """Wait for what is under way, remove what failed, then create."""
        if self._condition(world) is Condition.CHANGING:
            world = site.wait(
                "the control plane to settle",
                lambda seen: self._condition(seen) is not Condition.CHANGING,
                timeout_s=LONGEST_CREATION_S,
            )
        if self.is_done(world):
            return
        if self._condition(world) is Condition.BROKEN:
            self._clear(site, world)
        # The device plugin is a release of ours, with a version that we choose.
        path = site.write_configuration("eksctl.yaml")
        kubeconfig = ("--kubeconfig", str(site.kubeconfig))
        plugin = "--install-nvidia-plugin=false"
        site.runner.change(
            "eksctl", "create", "cluster", "-f", str(path), *kubeconfig, plugin, *CREATION_TIMEOUT
        )

    def after(self, world: World) -> World:
        """With everything that eksctl makes in one go."""
        groups = {group.name: group for group in self.file.workers}
        cluster = Cluster(
            status="ACTIVE",
            version=self.file.kubernetes,
            vpc="<vpc>",
            subnets=(
                Subnet(id="<subnet 1>", zone="<zone 1>", is_private=True),
                Subnet(id="<subnet 2>", zone="<zone 2>", is_private=True),
            ),
            security_group="<security group of the cluster>",
            tags=self.file.all_tags,
        )
        control = NodeGroup(
            status="ACTIVE", instance_types=(self.file.controller.instance_type,), is_spot=False, desired=1
        )
        workers = {
            name: NodeGroup(
                status="ACTIVE",
                instance_types=(group.instance_type,),
                is_spot=group.spot,
                desired=group.count,
            )
            for name, group in groups.items()
        }
        stacks = {group_stack(self.file.name, name): "CREATE_COMPLETE" for name in (CONTROL_GROUP, *groups)}
        return replace(
            world,
            cluster=cluster,
            stacks={cluster_stack(self.file.name): "CREATE_COMPLETE", **stacks},
            groups={CONTROL_GROUP: control, **workers},
            addons=dict.fromkeys(ADDONS, "ACTIVE"),
            identities=wanted_identities(self.file),
            has_kubeconfig=True,
            kube=None,
        )

    def is_there(self, world: World) -> bool:
        """Whether EKS knows it, in whatever state."""
        return world.cluster is not None

    def undo(self, site: Site, world: World) -> None:
        """Delete it by eksctl, with all that eksctl made for it.

        Raises:
            ProvisionError: the cluster is not ours.
        """
        if world.cluster is None:
            return
        if (
            world.cluster.tags.get(CLUSTER_TAG) != self.file.name
            and cluster_stack(self.file.name) not in world.stacks
        ):
            raise ProvisionError(
                f"the EKS cluster {self.file.name} in {self.file.region} was not made by `cerebro cluster`: it "
                f"lacks the tag {CLUSTER_TAG}. It is left alone"
            )
        if self._condition(world) is Condition.CHANGING:
            site.wait(
                "the control plane to settle",
                lambda seen: self._condition(seen) is not Condition.CHANGING,
                timeout_s=LONGEST_CREATION_S,
            )
        site.runner.change(
            "eksctl", "delete", "cluster", "--name", self.file.name, "--region", self.file.region,
            # force: on although nodes do not drain; there is nothing left that would need them
            "--wait", "--force", "--disable-nodegroup-eviction", *CREATION_TIMEOUT,
        )  # fmt: skip

    def _clear(self, site: Site, world: World) -> None:
        stack = world.stacks.get(cluster_stack(self.file.name), "")
        was_never_made = (
            world.cluster is None or world.cluster.status == "FAILED" or stack.startswith(_NEVER_MADE)
        )
        if not was_never_made:
            status = world.cluster.status if world.cluster is not None else ""
            raise ProvisionError(
                f"the control plane exists ({status}), but its stack is {stack or 'missing'}. Nothing is removed, "
                f"because there may be data in it: look with `eksctl utils describe-stacks --cluster {self.file.name} "
                f"--region {self.file.region}`, or remove all with `cerebro cluster delete`"
            )
        site.show("  an earlier attempt has failed: removing what it left")
        unmount(site, world)  # mount targets would keep the network from being deleted
        if world.cluster is not None:
            self.undo(site, world)
        Stacks(self.file).undo(site, site.observe())

    def _condition(self, world: World) -> Condition:
        return cluster_condition(world.cluster, world.stacks.get(cluster_stack(self.file.name)))


@dataclass(frozen=True)
class Kubeconfig:
    """A kubeconfig of its own in the cluster's folder; the user's is not touched."""

    file: ClusterFile
    name: str = "kubeconfig"

    def is_done(self, world: World) -> bool:
        """Whether the file names the cluster's present address."""
        return world.has_kubeconfig

    def do(self, site: Site, world: World) -> None:
        """Write it."""
        path = ("--kubeconfig", str(site.kubeconfig), "--alias", self.file.name)
        place = ("--name", self.file.name, "--region", self.file.region)
        site.runner.change("aws", "eks", "update-kubeconfig", *place, *path)

    def after(self, world: World) -> World:
        """With the file."""
        return replace(world, has_kubeconfig=True)


@dataclass(frozen=True)
class Stacks:
    """What eksctl left behind: CloudFormation stacks, in whatever state."""

    file: ClusterFile
    name: str = "CloudFormation stacks"

    def is_there(self, world: World) -> bool:
        """Whether any is left."""
        return bool(world.stacks)

    def undo(self, site: Site, world: World) -> None:
        """Delete all but the cluster's own, which the others need; then that one."""
        base = cluster_stack(self.file.name)
        delete_stacks(site, sorted(set(world.stacks) - {base}))
        delete_stacks(site, [base] if base in world.stacks else [])


def delete_stacks(site: Site, names: list[str]) -> None:
    """Delete CloudFormation stacks and wait until they are gone.

    Raises:
        ProvisionError: one could not be deleted; the message has CloudFormation's reason.
    """
    if not names:
        return
    for name in names:
        site.aws.change("cloudformation", "delete_stack", StackName=name)
    world = site.wait(
        f"{len(names)} stacks to be deleted",
        lambda seen: not any(_is_pending(seen.stacks.get(name)) for name in names),
        timeout_s=LONGEST_DELETION_S,
    )
    left = [name for name in names if name in world.stacks]
    if left and not site.is_dry:
        why = site.aws.look("cloudformation", "describe_stacks", StackName=left[0])["Stacks"][0]
        reason = why.get("StackStatusReason", "no reason given")
        raise ProvisionError(f"stack {left[0]} could not be deleted ({world.stacks[left[0]]}): {reason}")


def _is_pending(status: str | None) -> bool:
    return stack_condition(status) is Condition.CHANGING
