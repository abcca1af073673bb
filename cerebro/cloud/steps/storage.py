"""The shared file system on EFS, and the storage classes that hand out volumes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cerebro.cloud.aws import AwsError
from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.manifests import storage_classes
from cerebro.cloud.names import FINGERPRINT, file_system_group, file_system_token
from cerebro.cloud.observing import NFS_PORT
from cerebro.cloud.site import Site
from cerebro.cloud.world import Cluster, FileSystem, Kube, World, mount_subnets
from cerebro.errors import ProvisionError

LONGEST_S = 15 * 60.0
_AVAILABLE = "available"


@dataclass(frozen=True)
class SharedFileSystem:
    """EFS with a mount target per zone, reachable from the cluster's nodes only."""

    file: ClusterFile
    name: str = "file system"

    def is_done(self, world: World) -> bool:
        """Whether it can be mounted in every zone of the cluster."""
        system, cluster = world.file_system, world.cluster
        if system is None or cluster is None or system.state != _AVAILABLE:
            return False
        mounted = all(system.mounted.get(subnet) == _AVAILABLE for subnet in mount_subnets(cluster))
        return mounted and world.file_system_group is not None and world.is_file_system_group_open

    def do(self, site: Site, world: World) -> None:
        """Make what is missing: the file system, its security group with the rule, mount targets."""
        if world.cluster is None:
            raise ProvisionError(
                "the cluster has gone while its file system was made: give the same command again"
            )
        group = self._group(site, world, world.cluster)
        if world.file_system is None:
            self._create(site)
        world = site.wait(
            "the file system",
            lambda seen: seen.file_system is not None and seen.file_system.state == _AVAILABLE,
            timeout_s=LONGEST_S,
        )
        system = world.file_system or FileSystem(id="<file system>", state=_AVAILABLE, mounted={})
        cluster = world.cluster or Cluster(
            status="", version="", vpc="", subnets=(), security_group="", tags={}
        )
        for subnet in mount_subnets(cluster):
            if subnet not in system.mounted:
                site.aws.change(
                    "efs",
                    "create_mount_target",
                    FileSystemId=system.id,
                    SubnetId=subnet,
                    SecurityGroups=[group],
                )
        site.wait("the mount targets", self.is_done, timeout_s=LONGEST_S)

    def after(self, world: World) -> World:
        """With it."""
        subnets = mount_subnets(world.cluster) if world.cluster is not None else ()
        system = FileSystem(id="<file system>", state=_AVAILABLE, mounted=dict.fromkeys(subnets, _AVAILABLE))
        return replace(
            world, file_system=system, file_system_group="<security group>", is_file_system_group_open=True
        )

    def is_there(self, world: World) -> bool:
        """Whether any part of it is left."""
        return world.file_system is not None or world.file_system_group is not None

    def undo(self, site: Site, world: World) -> None:
        """Remove mount targets, file system and security group: its data are gone with it."""
        unmount(site, world)
        system = world.file_system
        if system is None:
            return
        if system.state != "deleting":
            points = site.aws.pages("efs", "describe_access_points", "AccessPoints", FileSystemId=system.id)
            for point in list(points):
                site.aws.change("efs", "delete_access_point", AccessPointId=point["AccessPointId"])
            site.aws.change("efs", "delete_file_system", FileSystemId=system.id)
        site.wait("the file system to go", lambda seen: seen.file_system is None, timeout_s=LONGEST_S)

    def _create(self, site: Site) -> None:
        tags = [{"Key": "Name", "Value": file_system_token(self.file.name)}]
        tags += [{"Key": key, "Value": value} for key, value in self.file.all_tags.items()]
        try:
            site.aws.change(
                "efs", "create_file_system",
                CreationToken=file_system_token(self.file.name), Encrypted=True, PerformanceMode="generalPurpose",
                ThroughputMode=self.file.storage.efs_throughput, Tags=tags,
            )  # fmt: skip
        except AwsError as problem:
            if (
                problem.code != "FileSystemAlreadyExists"
            ):  # made by an attempt that did not live to see the answer
                raise

    def _group(self, site: Site, world: World, cluster: Cluster) -> str:
        group = world.file_system_group
        if group is None:
            tags = [{"Key": key, "Value": value} for key, value in self.file.all_tags.items()]
            made = site.aws.change(
                "ec2", "create_security_group", dry={"GroupId": "<security group>"},
                GroupName=file_system_group(self.file.name), VpcId=cluster.vpc,
                Description=f"NFS from the nodes of {self.file.name}",
                TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
            )  # fmt: skip
            group = str(made["GroupId"])
        if not world.is_file_system_group_open:
            source = [{"GroupId": cluster.security_group}]
            rule = {"IpProtocol": "tcp", "FromPort": NFS_PORT, "ToPort": NFS_PORT, "UserIdGroupPairs": source}
            try:
                site.aws.change(
                    "ec2", "authorize_security_group_ingress", GroupId=group, IpPermissions=[rule]
                )
            except AwsError as problem:
                if problem.code != "InvalidPermission.Duplicate":
                    raise
        return group


def unmount(site: Site, world: World) -> None:
    """Remove what ties the file system to the cluster's network: mount targets and security group. Data stay."""
    if world.file_system is not None:
        id_ = world.file_system.id
        for target in list(site.aws.pages("efs", "describe_mount_targets", "MountTargets", FileSystemId=id_)):
            if target["LifeCycleState"] != "deleting":
                site.aws.change("efs", "delete_mount_target", MountTargetId=target["MountTargetId"])
        site.wait(
            "the mount targets to go",
            lambda seen: seen.file_system is None or not seen.file_system.mounted,
            timeout_s=LONGEST_S,
        )
    if world.file_system_group is not None:
        site.aws.change("ec2", "delete_security_group", GroupId=world.file_system_group)


@dataclass(frozen=True)
class StorageClasses:
    """``efs-sc`` for what all pods share, ``gp3`` for the disks of single pods."""

    file: ClusterFile
    name: str = "storage classes"

    def is_done(self, world: World) -> bool:
        """Whether both are as they would be made now, for this file system."""
        if world.kube is None or world.file_system is None:
            return False
        wanted = self._wanted(world.file_system.id)
        return all(world.kube.storage_classes.get(name) == print_ for name, print_ in wanted.items())

    def do(self, site: Site, world: World) -> None:
        """Apply them; one that differs is deleted first, because its parameters cannot be changed. Volumes stay."""
        if world.file_system is None:
            raise ProvisionError("the file system has gone: give the same command again")
        wanted = self._wanted(world.file_system.id)
        there = world.kube.storage_classes if world.kube is not None else {}
        for name in (name for name, print_ in wanted.items() if name in there and there[name] != print_):
            site.kubectl("delete", "storageclass", name, "--ignore-not-found")
        path = site.write("storage.yaml", storage_classes(self.file, world.file_system.id))
        site.kubectl("apply", "-f", str(path))

    def after(self, world: World) -> World:
        """With both."""
        kube = world.kube or Kube()
        system = world.file_system.id if world.file_system is not None else ""
        return replace(
            world, kube=replace(kube, storage_classes={**kube.storage_classes, **self._wanted(system)})
        )

    def _wanted(self, file_system: str) -> dict[str, str]:
        classes = storage_classes(self.file, file_system)
        return {made["metadata"]["name"]: made["metadata"]["annotations"][FINGERPRINT] for made in classes}
