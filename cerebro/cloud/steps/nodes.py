"""Node groups: made, scaled to what the file says, and to nothing in a pause."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.names import CONTROL_GROUP, group_stack
from cerebro.cloud.runner import CommandError
from cerebro.cloud.site import Site
from cerebro.cloud.steps.control_plane import CREATION_TIMEOUT, delete_stacks
from cerebro.cloud.world import Condition, NodeGroup, World, group_condition
from cerebro.errors import ProvisionError

LONGEST_S = 30 * 60.0


@dataclass(frozen=True)
class NodeGroups:
    """One for the control plane, one per group of the file."""

    file: ClusterFile
    name: str = "node groups"

    @property
    def wanted(self) -> dict[str, int]:
        """Nodes by group."""
        return {CONTROL_GROUP: 1, **{group.name: group.count for group in self.file.workers}}

    def is_done(self, world: World) -> bool:
        """Whether all are there, with as many nodes as the file says."""
        return all(
            self._condition(world, name) is Condition.READY and world.groups[name].desired == count
            for name, count in self.wanted.items()
        )

    def do(self, site: Site, world: World) -> None:
        """Wait for what is under way, remove what failed, make what is missing, scale the rest."""
        world = self._settled(site, world)
        for name in self._with(world, Condition.BROKEN):
            self._remove(site, world, name)
            world = site.observe()
        missing = self._with(world, Condition.ABSENT)
        if missing:
            path = site.write_configuration("eksctl.yaml")
            only, plugin = ("--include", ",".join(missing)), "--install-nvidia-plugin=false"
            site.runner.change(
                "eksctl", "create", "nodegroup", "-f", str(path), *only, plugin, *CREATION_TIMEOUT
            )
        self.scale(site, {name: count for name, count in self.wanted.items() if name not in missing})

    def scale(self, site: Site, counts: dict[str, int]) -> None:
        """Set the number of nodes of groups that exist, and wait until EKS has done so.

        Raises:
            ProvisionError: it has not within half an hour, as when there is no capacity in the zone.
        """
        world = site.observe()
        wrong = {
            name: count
            for name, count in counts.items()
            if name in world.groups and world.groups[name].desired != count
        }
        for name, count in wrong.items():
            most = max(1, count, self.wanted.get(name, 0)) + (name == CONTROL_GROUP)
            sizes = {"minSize": 0, "desiredSize": count, "maxSize": most}
            site.aws.change(
                "eks", "update_nodegroup_config",
                clusterName=self.file.name, nodegroupName=name, scalingConfig=sizes,
            )  # fmt: skip
        if wrong:
            self._settled(site, site.observe())

    def after(self, world: World) -> World:
        """With all nodes."""
        kinds = {CONTROL_GROUP: (self.file.controller.instance_type, False)}
        kinds |= {group.name: (group.instance_type, group.spot) for group in self.file.workers}
        made = {
            name: NodeGroup(
                status="ACTIVE", instance_types=(kinds[name][0],), is_spot=kinds[name][1], desired=count
            )
            for name, count in self.wanted.items()
        }
        stacks = {group_stack(self.file.name, name): "CREATE_COMPLETE" for name in made}
        return replace(world, groups={**world.groups, **made}, stacks={**world.stacks, **stacks})

    def _settled(self, site: Site, world: World) -> World:
        if not self._with(world, Condition.CHANGING):
            return world
        return site.wait(
            "the node groups to settle",
            lambda seen: not self._with(seen, Condition.CHANGING),
            timeout_s=LONGEST_S,
        )

    def _remove(self, site: Site, world: World, name: str) -> None:
        problems = world.groups[name].problems if name in world.groups else ()
        site.show(
            f"  node group {name} has failed before: removing it"
            + "".join(f"\n    {said}" for said in problems)
        )
        if name in world.groups:
            try:
                site.runner.change(
                    "eksctl",
                    "delete",
                    "nodegroup",
                    *site.place,
                    "--name",
                    name,
                    "--wait",
                    "--disable-eviction",
                )
            except CommandError as problem:
                site.show(f"  eksctl could not: {problem.last_lines[-1:]}; deleting its stack")
        stack = group_stack(self.file.name, name)
        if stack in site.observe().stacks:
            delete_stacks(site, [stack])
        if name in site.observe().groups and not site.is_dry:
            raise ProvisionError(
                f"node group {name} has failed and cannot be removed: look at it with `eksctl get nodegroup "
                f"--cluster {self.file.name} --region {self.file.region}`"
            )

    def _with(self, world: World, condition: Condition) -> list[str]:
        return [name for name in self.wanted if self._condition(world, name) is condition]

    def _condition(self, world: World, name: str) -> Condition:
        return group_condition(world.groups.get(name), world.stacks.get(group_stack(self.file.name, name)))
