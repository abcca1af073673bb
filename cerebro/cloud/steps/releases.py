"""What helm installs: NVIDIA's device plugin, monitoring, and the platform itself.

A release carries the fingerprint of its chart and values as its description, so a later run sees whether anything has
changed. One that was interrupted is locked by helm and never gets well by itself: it is rolled back, or, where there is
nothing to roll back to, uninstalled, before it is tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.manifests import (
    chart_fingerprint,
    fingerprint,
    gpu_plugin_values,
    monitoring_values,
    platform_values,
)
from cerebro.cloud.names import GPU_PLUGIN, MONITORING, MONITORING_NAMESPACE, NAMESPACE, PLATFORM
from cerebro.cloud.observing import DESCRIPTION
from cerebro.cloud.site import Site
from cerebro.cloud.world import Kube, Release, World

_DEPLOYED = "deployed"
_UNFINISHED_FIRST = ("pending-install", "uninstalling")
_UNFINISHED_LATER = ("pending-upgrade", "pending-rollback")


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    release: str
    namespace: str
    chart: tuple[str, ...]
    """Arguments that name it, with its version."""
    values: Mapping[str, Any]
    timeout: str
    print: str


class _Release:
    """What the three have in common; a subclass says what is `wanted`."""

    name: str

    def _wanted(self) -> _Wanted:
        raise NotImplementedError

    def is_done(self, world: World) -> bool:
        """Whether it is deployed, from this chart and with these values."""
        wanted = self._wanted()
        there = world.kube.releases.get(wanted.release) if world.kube is not None else None
        return there is not None and there.status == _DEPLOYED and there.fingerprint == wanted.print

    def do(self, site: Site, world: World) -> None:
        """Install or upgrade it, and wait until its pods are ready."""
        wanted = self._wanted()
        there = world.kube.releases.get(wanted.release) if world.kube is not None else None
        at = (wanted.release, "--namespace", wanted.namespace)
        if there is not None and there.status in _UNFINISHED_FIRST:
            site.helm("uninstall", *at, "--wait", "--timeout", "5m")
        elif there is not None and there.status in _UNFINISHED_LATER:
            site.helm("rollback", *at, "--wait", "--timeout", wanted.timeout)
        path = site.write(f"values-{wanted.release}.yaml", dict(wanted.values))
        site.helm(
            "upgrade", "--install", wanted.release, *wanted.chart,
            "--namespace", wanted.namespace, "--create-namespace", "--values", str(path),
            "--description", f"{DESCRIPTION}{wanted.print}", "--wait", "--timeout", wanted.timeout,
        )  # fmt: skip

    def after(self, world: World) -> World:
        """With it."""
        wanted, kube = self._wanted(), world.kube or Kube()
        made = Release(namespace=wanted.namespace, status=_DEPLOYED, fingerprint=wanted.print)
        return replace(world, kube=replace(kube, releases={**kube.releases, wanted.release: made}))

    def is_there(self, world: World) -> bool:
        """Whether helm knows it, in whatever state."""
        return world.kube is not None and self._wanted().release in world.kube.releases

    def undo(self, site: Site, world: World) -> None:
        """Uninstall it."""
        wanted = self._wanted()
        # Not --wait: nodes may be gone, and what pods leave behind goes with the cluster.
        site.helm("uninstall", wanted.release, "--namespace", wanted.namespace, "--timeout", "5m")


@dataclass(frozen=True)
class GpuPlugin(_Release):
    """Makes GPUs known to the scheduler."""

    file: ClusterFile
    name: str = "GPU device plugin"

    def _wanted(self) -> _Wanted:
        chart = (GPU_PLUGIN, "--repo", "https://nvidia.github.io/k8s-device-plugin", "--version", "0.17.1")
        values = gpu_plugin_values()
        return _Wanted(
            release=GPU_PLUGIN,
            namespace="kube-system",
            chart=chart,
            values=values,
            timeout="10m",
            print=fingerprint(chart, values),
        )


@dataclass(frozen=True)
class Monitoring(_Release):
    """Prometheus and Grafana."""

    file: ClusterFile
    name: str = "monitoring"

    def _wanted(self) -> _Wanted:
        chart = (
            MONITORING, "--repo", "https://prometheus-community.github.io/helm-charts", "--version", "91.5.0",
        )  # fmt: skip
        values = monitoring_values(self.file)
        return _Wanted(
            release=MONITORING,
            namespace=MONITORING_NAMESPACE,
            chart=chart,
            values=values,
            timeout="15m",
            print=fingerprint(chart, values),
        )


@dataclass(frozen=True)
class Platform(_Release):
    """The chart deploy/helm/cerebro."""

    file: ClusterFile
    chart: Path
    name: str = "platform"

    def _wanted(self) -> _Wanted:
        values = platform_values(self.file)
        return _Wanted(
            release=PLATFORM,
            namespace=NAMESPACE,
            chart=(str(self.chart),),
            values=values,
            timeout="20m",  # nodes pull gigabytes of images first
            print=fingerprint(chart_fingerprint(self.chart), values),
        )
