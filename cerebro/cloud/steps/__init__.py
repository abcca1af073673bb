"""The parts of a cluster: how each is made, told from what is there, and removed.

`creation` and `removal` name them in their orders.
"""

from __future__ import annotations

from pathlib import Path

from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.steps.addons import Identities, NetworkAddons, WorkloadAddons
from cerebro.cloud.steps.base import Removal, Step
from cerebro.cloud.steps.control_plane import ControlPlane, Kubeconfig, Stacks
from cerebro.cloud.steps.leftovers import Balancers, Contents, LogGroups, Volumes
from cerebro.cloud.steps.nodes import NodeGroups
from cerebro.cloud.steps.releases import GpuPlugin, Monitoring, Platform
from cerebro.cloud.steps.storage import SharedFileSystem, StorageClasses

__all__ = ["Removal", "Step", "creation", "removal"]


def creation(file: ClusterFile, chart: Path) -> list[Step]:
    """In the order in which they are made; each needs those before it."""
    steps: list[Step] = [
        ControlPlane(file),
        NetworkAddons(file),  # nodes without a network never become ready
        NodeGroups(file),
        WorkloadAddons(file),
        Identities(file),
        Kubeconfig(file),
        SharedFileSystem(file),
        StorageClasses(file),
    ]
    if file.gpus and file.install.gpu_plugin:
        steps.append(GpuPlugin(file))
    if file.install.monitoring:
        steps.append(Monitoring(file))
    return [*steps, Platform(file, chart)]


def removal(file: ClusterFile, chart: Path) -> list[Removal]:
    """In the order in which they are removed: what holds on to the network goes before the network."""
    return [
        Platform(file, chart),
        Monitoring(file),
        GpuPlugin(file),
        Contents(),
        Balancers(file),
        SharedFileSystem(file),
        ControlPlane(file),
        Stacks(file),
        Volumes(),
        LogGroups(),
    ]
