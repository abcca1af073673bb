"""Pause and resume: nodes to none, and back to what the file says. Data and addresses stay; so do the small costs."""

from __future__ import annotations

from cerebro.cloud.planning import conflicts, known_zones
from cerebro.cloud.site import Site
from cerebro.cloud.steps.nodes import NodeGroups
from cerebro.cloud.world import World
from cerebro.errors import ProvisionError


def pause(site: Site) -> None:
    """Scale all node groups to none. Runs in flight go on after `resume`; twice is once.

    Raises:
        ProvisionError: there is no cluster, or EKS refuses.
    """
    world = _existing(site)
    # Workers first: they hand over while the store and the controller still run.
    names = sorted(world.groups, key=lambda name: (name == "control", name))
    groups = NodeGroups(site.file)
    workers = {name: 0 for name in names if name != "control"}
    groups.scale(site, workers)
    groups.scale(site, {name: 0 for name in names if name == "control"})
    site.show(
        f"{site.file.name} is paused: its nodes end within minutes. The control plane of EKS, the NAT gateway, disks "
        "and the file system go on costing; `cerebro cluster resume` brings the nodes back."
    )


def resume(site: Site) -> None:
    """Scale all node groups to what the file says, and wait for the nodes.

    Raises:
        ProvisionError: there is no cluster, its groups differ from the file, or there is no capacity.
    """
    world = _existing(site)
    clashes = conflicts(site.file, world)
    if clashes:
        raise ProvisionError("\n".join(clashes))
    site.zones = known_zones(site.file, world)
    NodeGroups(site.file).do(site, world)
    if world.has_kubeconfig:
        site.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=15m")
    site.show(f"{site.file.name} has its nodes again; its pods follow: kubectl -n cerebro get pods")


def _existing(site: Site) -> World:
    world = site.observe()
    if world.cluster is None:
        raise ProvisionError(
            f"there is no cluster {site.file.name} in {site.file.region}: `cerebro cluster create` makes it"
        )
    return world
