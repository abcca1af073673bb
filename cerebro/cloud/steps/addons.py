"""EKS addons and the AWS identities of service accounts.

``eksctl create cluster`` makes them. What it had not made when it failed is made here, with a configuration that names
only what is missing: eksctl refuses what exists. Roles whose addon or identity is missing are removed first, since
their stacks would be in the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.eksctl_config import NETWORK_ADDONS, WORKLOAD_ADDONS, wanted_identities
from cerebro.cloud.names import addon_stack_prefix, is_identity_stack
from cerebro.cloud.site import Site
from cerebro.cloud.steps.control_plane import delete_stacks
from cerebro.cloud.world import Condition, World, addon_condition

LONGEST_S = 20 * 60.0


@dataclass(frozen=True)
class NetworkAddons:
    """Daemons that nodes need; they are there as soon as EKS has them, with or without nodes to run on."""

    file: ClusterFile
    name: str = "network addons"
    members: ClassVar[tuple[str, ...]] = NETWORK_ADDONS

    def is_done(self, world: World) -> bool:
        """Whether EKS has them all."""
        return not _missing(world, self.members)

    def do(self, site: Site, world: World) -> None:
        """Make those that are missing or failed."""
        _make(site, world, self.members)

    def after(self, world: World) -> World:
        """With them."""
        return replace(world, addons={**world.addons, **dict.fromkeys(self.members, "ACTIVE")})


@dataclass(frozen=True)
class WorkloadAddons:
    """Pods that need nodes: name service, metrics, drivers of disks and file systems."""

    file: ClusterFile
    name: str = "addons"
    members: ClassVar[tuple[str, ...]] = WORKLOAD_ADDONS

    def is_done(self, world: World) -> bool:
        """Whether all of them run."""
        return all(addon_condition(world.addons.get(name)) is Condition.READY for name in self.members)

    def do(self, site: Site, world: World) -> None:
        """Make those that are missing or failed, and wait until all run."""
        if _missing(world, self.members):
            _make(site, world, self.members)
        site.wait("the addons to run", self.is_done, timeout_s=LONGEST_S)

    def after(self, world: World) -> World:
        """With them."""
        return replace(world, addons={**world.addons, **dict.fromkeys(self.members, "ACTIVE")})


@dataclass(frozen=True)
class Identities:
    """Service accounts that may read the buckets of the file: no keys, no secrets."""

    file: ClusterFile
    name: str = "identities"

    def is_done(self, world: World) -> bool:
        """Whether each has its identity."""
        return wanted_identities(self.file) <= world.identities

    def do(self, site: Site, world: World) -> None:
        """Make those that are missing."""
        missing = sorted(wanted_identities(self.file) - world.identities)
        stacks = [
            stack
            for stack in sorted(world.stacks)
            if any(is_identity_stack(self.file.name, stack, account) for account in missing)
        ]
        delete_stacks(site, stacks)
        path = site.write_configuration("eksctl-identities.yaml", addons=(), identities=missing)
        site.runner.change("eksctl", "create", "podidentityassociation", "-f", str(path))

    def after(self, world: World) -> World:
        """With them."""
        return replace(world, identities=world.identities | wanted_identities(self.file))


def _missing(world: World, members: tuple[str, ...]) -> list[str]:
    lacking = (Condition.ABSENT, Condition.BROKEN)
    return [name for name in members if addon_condition(world.addons.get(name)) in lacking]


def _make(site: Site, world: World, members: tuple[str, ...]) -> None:
    missing = _missing(world, members)
    for name in missing:
        if name in world.addons:
            site.runner.change("eksctl", "delete", "addon", *site.place, "--name", name)
    site.wait(
        "failed addons to go",
        lambda seen: not any(name in seen.addons for name in missing),
        timeout_s=LONGEST_S,
    )
    prefixes = tuple(addon_stack_prefix(site.file.name, name) for name in missing)
    delete_stacks(site, [stack for stack in sorted(site.observe().stacks) if stack.startswith(prefixes)])
    path = site.write_configuration("eksctl-addons.yaml", addons=missing, identities=())
    site.runner.change("eksctl", "create", "addon", "-f", str(path))
