"""A stand-in for eksctl: the parts it creates, in order, and its refusals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from moto.backends import get_backend
from moto.core.models import DEFAULT_ACCOUNT_ID

from cerebro.cloud.names import STACK_TAG, cluster_stack, group_stack

if TYPE_CHECKING:
    from tests.cloud.cloud import Cloud

Answer = tuple[int, str]
_ROLE = "arn:aws:iam::123456789012:role/eks"


def eksctl(cloud: Cloud, arguments: Sequence[str]) -> Answer:
    """Answer a call."""
    from tests.cloud.cloud import value

    config = yaml.safe_load(Path(value(arguments, "-f")).read_text()) if "-f" in arguments else {}
    match list(arguments[:2]):
        case ["version"]:
            return 0, "0.215.0"
        case ["create", "cluster"]:
            _create_cluster(cloud, config)
            cloud.kube.write_kubeconfig(value(arguments, "--kubeconfig"), config["metadata"]["name"])
        case ["create", "nodegroup"]:
            _create_groups(cloud, config)
        case ["create", "addon"]:
            make_addons(cloud, config)
            cloud.made(6)
        case ["delete", "cluster"]:
            return _delete(cloud, value(arguments, "--name"))
        case _:
            raise AssertionError(f"eksctl {arguments}")
    return 0, "[✔]  done"


def _create_cluster(cloud: Cloud, config: dict[str, Any]) -> None:
    """Create only parts that need no nodes, since eksctl would wait for nodes."""
    assert "managedNodeGroups" not in config
    assert config["addonsConfig"]["disableDefaultAddons"]
    make_network(cloud, config)
    cloud.made(0)
    make_control_plane(cloud, config)
    cloud.made(1)
    make_addons(cloud, config)
    cloud.made(2)


def _create_groups(cloud: Cloud, config: dict[str, Any]) -> None:
    """Create the groups without a stack or a group of that name; skip the others."""
    name = config["metadata"]["name"]
    there = set(cloud.client("eks").list_nodegroups(clusterName=name)["nodegroups"])
    new_groups = [
        group["name"]
        for group in config["managedNodeGroups"]
        if group["name"] not in there and group_stack(name, group["name"]) not in cloud.stacks()
    ]
    for number, group in enumerate(new_groups):
        make_group(cloud, config, group)
        if number == 1 and cloud.eksctl_stops_after == 4:
            _fail_group(cloud, name, group)
        cloud.made(3 if number == 0 else 4)
    cloud.made(5)


def make_network(cloud: Cloud, config: dict[str, Any]) -> None:
    """Create the cluster's stack: VPC, subnets, gateway."""
    name, zones = config["metadata"]["name"], config["availabilityZones"]
    resources: dict[str, Any] = {
        "VPC": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "192.168.0.0/16"}}
    }
    for index, zone in enumerate(zones):
        for offset, role in ((0, "elb"), (4, "internal-elb")):
            resources[f"Subnet{index}{offset}"] = {
                "Type": "AWS::EC2::Subnet",
                "Properties": {
                    "VpcId": {"Ref": "VPC"},
                    "CidrBlock": f"192.168.{32 * (index + offset)}.0/19",
                    "AvailabilityZone": zone,
                    "Tags": [{"Key": f"kubernetes.io/role/{role}", "Value": "1"}],
                },
            }
    resources["ControlPlane"] = {
        "Type": "AWS::EC2::SecurityGroup",
        "Properties": {"GroupName": f"eks-{name}", "GroupDescription": "nodes", "VpcId": {"Ref": "VPC"}},
    }
    private = [{"Ref": key} for key in resources if key.startswith("Subnet") and key.endswith("4")]
    exported = {
        "VPC": {"Ref": "VPC"},
        "SubnetsPrivate": {"Fn::Join": [",", private]},
        "ClusterSecurityGroupId": {"Fn::GetAtt": ["ControlPlane", "GroupId"]},
    }
    tags = config["metadata"]["tags"]
    cloud.make_stack(cluster_stack(name), name, tags, resources, exported)
    ec2 = cloud.client("ec2")
    both = [{"Key": key, "Value": value} for key, value in {**tags, STACK_TAG: name}.items()]
    address = ec2.allocate_address(
        Domain="vpc", TagSpecifications=[{"ResourceType": "elastic-ip", "Tags": both}]
    )["AllocationId"]
    ec2.create_nat_gateway(
        SubnetId=_subnets(cloud, name)[0]["SubnetId"], AllocationId=address,
        TagSpecifications=[{"ResourceType": "natgateway", "Tags": both}],
    )  # fmt: skip


def make_control_plane(cloud: Cloud, config: dict[str, Any]) -> None:
    """Create the EKS cluster with its security group."""
    name = config["metadata"]["name"]
    subnets = _subnets(cloud, name)
    vpc = subnets[0]["VpcId"]
    filters = [{"Name": "group-name", "Values": [f"eks-{name}"]}]
    (group,) = cloud.client("ec2").describe_security_groups(Filters=filters)["SecurityGroups"]
    cloud.client("eks").create_cluster(
        name=name, version=config["metadata"]["version"], roleArn=_ROLE, tags=config["metadata"]["tags"],
        resourcesVpcConfig={"subnetIds": [subnet["SubnetId"] for subnet in subnets]},
    )  # fmt: skip
    cluster = get_backend("eks")[DEFAULT_ACCOUNT_ID]["us-east-1"].clusters[name]
    cluster.resources_vpc_config |= {"vpcId": vpc, "clusterSecurityGroupId": group["GroupId"]}


def make_group(cloud: Cloud, config: dict[str, Any], group: str) -> None:
    """Create a managed node group with its stack and its nodes."""
    name = config["metadata"]["name"]
    group_config = next(each for each in config["managedNodeGroups"] if each["name"] == group)
    cloud.make_stack(group_stack(name, group), name, group_config["tags"])
    private = [
        subnet
        for subnet in _subnets(cloud, name)
        if subnet["AvailabilityZone"] in group_config["availabilityZones"]
    ]
    cloud.client("eks").create_nodegroup(
        clusterName=name, nodegroupName=group, nodeRole=_ROLE, subnets=[private[0]["SubnetId"]],
        instanceTypes=_types(group_config), capacityType="SPOT" if group_config.get("spot") else "ON_DEMAND",
        scalingConfig={
            "minSize": group_config["minSize"], "maxSize": group_config["maxSize"],
            "desiredSize": group_config["desiredCapacity"],
        },
        tags=group_config["tags"],
    )  # fmt: skip
    tags = [
        {"Key": key, "Value": value}
        for key, value in {**group_config["tags"], "group": f"{name}/{group}"}.items()
    ]
    cloud.client("ec2").run_instances(
        ImageId="ami-12c6146b", InstanceType=_types(group_config)[0],
        MinCount=group_config["desiredCapacity"], MaxCount=group_config["desiredCapacity"],
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )  # fmt: skip


def _fail_group(cloud: Cloud, name: str, group: str) -> None:
    made = get_backend("eks")[DEFAULT_ACCOUNT_ID]["us-east-1"].clusters[name].nodegroups[group]
    made.status = "CREATE_FAILED"
    cloud.set_stack(group_stack(name, group), "ROLLBACK_FAILED")


def make_addons(cloud: Cloud, config: dict[str, Any]) -> None:
    """Create missing or failed addons; an addon that uses AWS first gets a stack with its role."""
    cluster = config["metadata"]["name"]
    for name in (addon["name"] for addon in config["addons"]):
        if cloud.addons.get(name, "CREATE_FAILED") != "CREATE_FAILED":
            continue
        if "csi" in name:
            cloud.make_stack(f"eksctl-{cluster}-addon-{name}-podidentityrole-controller-sa", cluster, {})
        cloud.addons[name] = "ACTIVE"


def _delete(cloud: Cloud, name: str) -> Answer:
    base = cluster_stack(name)
    mine = [
        stack["StackName"]
        for stack in cloud.client("cloudformation").describe_stacks()["Stacks"]
        if {"Key": STACK_TAG, "Value": name} in stack["Tags"] and stack["StackName"] != base
    ]
    for stack in mine:
        cloud.delete_stack(stack)
    if base in cloud.stacks():
        cloud.delete_stack(base)
    if base in cloud.stacks():
        return 1, f"Error: failed to delete cluster with nodegroup(s): {base} DELETE_FAILED"
    return 0, "[✔]  all cluster resources were deleted"


def _subnets(cloud: Cloud, name: str) -> list[dict[str, Any]]:
    filters = [{"Name": "tag:aws:cloudformation:stack-name", "Values": [cluster_stack(name)]}]
    found = cloud.client("ec2").describe_subnets(Filters=filters)["Subnets"]
    return sorted(found, key=lambda subnet: subnet["CidrBlock"])


def _types(group: dict[str, Any]) -> list[str]:
    """Return the instance types of either field; eksctl refuses both together."""
    assert ("instanceType" in group) != ("instanceTypes" in group)
    return group.get("instanceTypes") or [group["instanceType"]]
