"""What of a cluster costs money, asked from each service itself.

Not from AWS's index of tags: that one lags by minutes and would name what has just been deleted. Everything is found by
tags of ours, of eksctl or of Kubernetes' controllers, whether or not a cluster still exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cerebro.cloud.aws import Aws, AwsError
from cerebro.cloud.names import CLUSTER_TAG, STACK_TAG, file_system_token, log_group_prefixes, owned_tag
from cerebro.cloud.world import Resource

CLUSTER = "EKS cluster"
INSTANCE = "instance"
VOLUME = "volume"
SNAPSHOT = "snapshot"
NAT = "NAT gateway"
ADDRESS = "elastic address"
BALANCER = "load balancer"
CLASSIC_BALANCER = "classic load balancer"
FILE_SYSTEM = "file system"
LOG_GROUP = "log group"

_TAGS_PER_CALL = 20


def resources(aws: Aws, name: str) -> tuple[Resource, ...]:
    """Everything that costs money and bears the cluster's name.

    Raises:
        AwsError: AWS refused, or did not answer: then nothing may be concluded.
    """
    kinds: tuple[Callable[[Aws, str], Iterator[Resource]], ...] = (
        _clusters,
        _instances,
        _volumes,
        _snapshots,
        _gateways,
        _addresses,
        _balancers,
        _classic_balancers,
        _file_systems,
        _log_groups,
    )
    return tuple(found for kind in kinds for found in kind(aws, name))


_IDS = {
    "Reservations": "InstanceId",
    "Volumes": "VolumeId",
    "Snapshots": "SnapshotId",
    "NatGateways": "NatGatewayId",
    "Addresses": "AllocationId",
}


def _tagged(aws: Aws, name: str, operation: str, key: str, *filters: Any) -> list[dict[str, Any]]:
    """EC2's filters have no "or" over tags: each is asked for, each thing kept once."""
    found: dict[str, dict[str, Any]] = {}
    for tag, value in ((CLUSTER_TAG, name), (STACK_TAG, name), (owned_tag(name), "owned")):
        argument = "Filter" if operation == "describe_nat_gateways" else "Filters"
        asked: dict[str, Any] = {argument: [{"Name": f"tag:{tag}", "Values": [value]}, *filters]}
        if operation == "describe_snapshots":  # not those that others share with everybody
            asked["OwnerIds"] = ["self"]
        if operation == "describe_addresses":  # the one without pages
            items = iter(aws.look("ec2", operation, **asked)[key])
        else:
            items = aws.pages("ec2", operation, key, **asked)
        for item in items:
            for thing in item["Instances"] if key == "Reservations" else [item]:
                found[thing[_IDS[key]]] = thing
    return list(found.values())


def _clusters(aws: Aws, name: str) -> Iterator[Resource]:
    if name in aws.pages("eks", "list_clusters", "clusters"):
        yield Resource(
            kind=CLUSTER, id=name, remove=f"eksctl delete cluster --name {name} --region {aws.region} --wait"
        )


def _instances(aws: Aws, name: str) -> Iterator[Resource]:
    alive = {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}
    for found in _tagged(aws, name, "describe_instances", "Reservations", alive):
        about = found["InstanceType"] + (" spot" if found.get("InstanceLifecycle") == "spot" else "")
        yield _of_ec2(aws, INSTANCE, found["InstanceId"], "terminate-instances --instance-ids", about)


def _volumes(aws: Aws, name: str) -> Iterator[Resource]:
    alive = {"Name": "status", "Values": ["creating", "available", "in-use", "error"]}
    for found in _tagged(aws, name, "describe_volumes", "Volumes", alive):
        about = f"{found['Size']} GiB {found['VolumeType']}, {found['State']}"
        yield _of_ec2(aws, VOLUME, found["VolumeId"], "delete-volume --volume-id", about)


def _snapshots(aws: Aws, name: str) -> Iterator[Resource]:
    for found in _tagged(aws, name, "describe_snapshots", "Snapshots"):
        yield _of_ec2(
            aws,
            SNAPSHOT,
            found["SnapshotId"],
            "delete-snapshot --snapshot-id",
            f"{found.get('VolumeSize')} GiB",
        )


def _gateways(aws: Aws, name: str) -> Iterator[Resource]:
    alive = {"Name": "state", "Values": ["pending", "available"]}
    for found in _tagged(aws, name, "describe_nat_gateways", "NatGateways", alive):
        yield _of_ec2(aws, NAT, found["NatGatewayId"], "delete-nat-gateway --nat-gateway-id")


def _addresses(aws: Aws, name: str) -> Iterator[Resource]:
    for found in _tagged(aws, name, "describe_addresses", "Addresses"):
        yield _of_ec2(
            aws, ADDRESS, found["AllocationId"], "release-address --allocation-id", found.get("PublicIp", "")
        )


def _of_ec2(aws: Aws, kind: str, id_: str, remove: str, about: str = "") -> Resource:
    return Resource(kind=kind, id=id_, about=about, remove=f"aws ec2 {remove} {id_} --region {aws.region}")


def _is_ours(name: str, tags: list[dict[str, str]]) -> bool:
    given = {tag["Key"]: tag["Value"] for tag in tags}
    keys = (CLUSTER_TAG, STACK_TAG, "elbv2.k8s.aws/cluster")
    return owned_tag(name) in given or any(given.get(key) == name for key in keys)


def _balancers(aws: Aws, name: str) -> Iterator[Resource]:
    found = [
        each["LoadBalancerArn"] for each in aws.pages("elbv2", "describe_load_balancers", "LoadBalancers")
    ]
    for first in range(0, len(found), _TAGS_PER_CALL):
        some = found[first : first + _TAGS_PER_CALL]
        for seen in aws.look("elbv2", "describe_tags", ResourceArns=some)["TagDescriptions"]:
            if _is_ours(name, seen["Tags"]):
                arn = seen["ResourceArn"]
                remove = f"aws elbv2 delete-load-balancer --load-balancer-arn {arn} --region {aws.region}"
                yield Resource(kind=BALANCER, id=arn, remove=remove)


def _classic_balancers(aws: Aws, name: str) -> Iterator[Resource]:
    pages = aws.pages("elb", "describe_load_balancers", "LoadBalancerDescriptions")
    found = [each["LoadBalancerName"] for each in pages]
    for first in range(0, len(found), _TAGS_PER_CALL):
        some = found[first : first + _TAGS_PER_CALL]
        for seen in aws.look("elb", "describe_tags", LoadBalancerNames=some)["TagDescriptions"]:
            if _is_ours(name, seen["Tags"]):
                id_ = seen["LoadBalancerName"]
                remove = f"aws elb delete-load-balancer --load-balancer-name {id_} --region {aws.region}"
                yield Resource(kind=CLASSIC_BALANCER, id=id_, remove=remove)


def _file_systems(aws: Aws, name: str) -> Iterator[Resource]:
    pages = aws.pages("efs", "describe_file_systems", "FileSystems", CreationToken=file_system_token(name))
    for found in pages:
        id_, size = found["FileSystemId"], found.get("SizeInBytes", {}).get("Value", 0)
        yield Resource(
            kind=FILE_SYSTEM,
            id=id_,
            about=f"{size / 2**30:.1f} GiB",
            remove=f"aws efs delete-file-system --file-system-id {id_} --region {aws.region}",
        )


def _log_groups(aws: Aws, name: str) -> Iterator[Resource]:
    for prefix in log_group_prefixes(name):
        try:
            for found in aws.pages("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=prefix):
                id_ = found["logGroupName"]
                remove = f"aws logs delete-log-group --log-group-name {id_} --region {aws.region}"
                about = f"{found.get('storedBytes', 0) / 2**30:.1f} GiB"
                yield Resource(kind=LOG_GROUP, id=id_, about=about, remove=remove)
        except AwsError as problem:
            if not problem.is_absence:
                raise
