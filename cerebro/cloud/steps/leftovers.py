"""What controllers inside the cluster have made on AWS: it would outlive the cluster, and cost money.

Inside, objects are deleted so that their controllers remove what belongs to them. Controllers may be dead by then, or
paused, so afterwards the same things are looked for on AWS, by their tags.
"""

from __future__ import annotations

from dataclasses import dataclass

from cerebro.cloud import inventory
from cerebro.cloud.aws import AwsError
from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.names import MONITORING_NAMESPACE, NAMESPACE, owned_tag
from cerebro.cloud.site import Site
from cerebro.cloud.world import Resource, World

LONGEST_S = 15 * 60.0
_BALANCERS = (inventory.BALANCER, inventory.CLASSIC_BALANCER)


@dataclass(frozen=True)
class Contents:
    """Services and ingresses with load balancers, and the claims of volumes."""

    name: str = "load balancers and volumes inside the cluster"

    def is_there(self, world: World) -> bool:
        """Whether any is left."""
        return world.kube is not None and bool(world.kube.balancers or world.kube.claims)

    def undo(self, site: Site, world: World) -> None:
        """Delete them; the controllers follow."""
        kube = world.kube
        if kube is None:
            return
        for kind, namespace, name in kube.balancers:
            site.kubectl("delete", kind, name, "-n", namespace, "--ignore-not-found", "--timeout=5m")
        if kube.claims:
            # Namespaces, not claims: a claim goes only when the pods that use it have gone.
            both = (NAMESPACE, MONITORING_NAMESPACE)
            site.kubectl("delete", "namespace", *both, "--ignore-not-found", "--timeout=5m")


@dataclass(frozen=True)
class Balancers:
    """Load balancers on AWS, and their security groups: they would keep the network from being deleted."""

    file: ClusterFile
    name: str = "load balancers"

    def is_there(self, world: World) -> bool:
        """Whether any is left."""
        return any(resource.kind in _BALANCERS for resource in world.resources)

    def undo(self, site: Site, world: World) -> None:
        """Delete them."""
        for resource in _of(world, inventory.BALANCER):
            site.aws.change("elbv2", "delete_load_balancer", LoadBalancerArn=resource.id)
        for resource in _of(world, inventory.CLASSIC_BALANCER):
            site.aws.change("elb", "delete_load_balancer", LoadBalancerName=resource.id)
        filters = [
            {"Name": f"tag:{owned_tag(self.file.name)}", "Values": ["owned"]},
            {"Name": "group-name", "Values": ["k8s-*"]},  # not EKS's own, which EKS deletes
        ]
        groups = site.aws.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=filters)
        for group in list(groups):
            try:
                site.aws.change("ec2", "delete_security_group", GroupId=group["GroupId"])
            except AwsError as problem:
                site.show(
                    f"  {problem}"
                )  # in use until the balancer's interfaces are gone; the stack's deletion tells


@dataclass(frozen=True)
class Volumes:
    """Disks of pods; the file system and the nodes' own disks are not among them."""

    name: str = "volumes"

    def is_there(self, world: World) -> bool:
        """Whether any is left."""
        return bool(_of(world, inventory.VOLUME))

    def undo(self, site: Site, world: World) -> None:
        """Delete those that no node holds: their data are gone."""
        for resource in _of(world, inventory.VOLUME):
            try:
                site.aws.change("ec2", "delete_volume", VolumeId=resource.id)
            except AwsError as problem:
                if not problem.is_absence:
                    raise


@dataclass(frozen=True)
class LogGroups:
    """CloudWatch keeps logs for ever unless told otherwise."""

    name: str = "log groups"

    def is_there(self, world: World) -> bool:
        """Whether any is left."""
        return bool(_of(world, inventory.LOG_GROUP))

    def undo(self, site: Site, world: World) -> None:
        """Delete them."""
        for resource in _of(world, inventory.LOG_GROUP):
            site.aws.change("logs", "delete_log_group", logGroupName=resource.id)


def _of(world: World, kind: str) -> list[Resource]:
    return [resource for resource in world.resources if resource.kind == kind]
