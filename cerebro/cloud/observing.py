"""Looks at AWS and at the cluster, and says what is there as a `World`. Reads only; safe at any time.

AWS is the truth: no record of earlier commands is consulted. Stacks are recognised by eksctl's tag, not by the
beginning of their name, because ``eksctl-demo-`` also begins the stacks of a cluster named ``demo-two``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cerebro.cloud.aws import Aws, AwsError
from cerebro.cloud.inventory import resources
from cerebro.cloud.names import (
    CLUSTER_TAG,
    FINGERPRINT,
    NAMESPACE,
    STACK_TAG,
    file_system_group,
    file_system_token,
)
from cerebro.cloud.runner import Runner
from cerebro.cloud.world import Cluster, FileSystem, Kube, NodeGroup, Release, Subnet, World

NFS_PORT = 2049
DESCRIPTION = "cerebro "
"""Begins the description of a release that we made; its fingerprint follows."""
_KINDS = "storageclasses,services,ingresses,persistentvolumeclaims"


def observe(name: str, aws: Aws, runner: Runner, kubeconfig: Path, *, with_resources: bool = False) -> World:
    """What there is of the cluster `name`.

    Args:
        name: of the cluster.
        aws: asked for everything outside the cluster.
        runner: kubectl and helm are asked for what is inside, if the cluster runs and `kubeconfig` is there.
        kubeconfig: the cluster's own.
        with_resources: list what costs money as well; takes a dozen calls more.

    Raises:
        AwsError: AWS refused, or did not answer.
    """
    cluster, endpoint = _cluster(aws, name)
    has_kubeconfig = cluster is not None and kubeconfig.is_file() and endpoint in kubeconfig.read_text()
    groups = {} if cluster is None else _groups(aws, name)
    is_up = has_kubeconfig and cluster is not None and cluster.status in ("ACTIVE", "UPDATING")
    group_id, is_open = _security_group(aws, name)
    return World(
        cluster=cluster,
        stacks=_stacks(aws, name),
        groups=groups,
        addons={} if cluster is None else _addons(aws, name),
        identities=frozenset() if cluster is None else _identities(aws, name),
        file_system=_file_system(aws, name),
        file_system_group=group_id,
        is_file_system_group_open=is_open,
        has_kubeconfig=has_kubeconfig,
        kube=_kube(runner, kubeconfig) if is_up else None,
        resources=resources(aws, name) if with_resources else (),
    )


def _cluster(aws: Aws, name: str) -> tuple[Cluster | None, str]:
    try:
        found = aws.look("eks", "describe_cluster", name=name)["cluster"]
    except AwsError as problem:
        if problem.is_absence:
            return None, ""
        raise
    network = found.get("resourcesVpcConfig", {})
    cluster = Cluster(
        status=found["status"],
        version=found.get("version", ""),
        vpc=network.get("vpcId", ""),
        subnets=_subnets(aws, network.get("subnetIds", [])),
        security_group=network.get("clusterSecurityGroupId", ""),
        tags=found.get("tags", {}),
    )
    return cluster, found.get("endpoint", "")


def _subnets(aws: Aws, ids: list[str]) -> tuple[Subnet, ...]:
    if not ids:
        return ()
    try:
        found = list(aws.pages("ec2", "describe_subnets", "Subnets", SubnetIds=ids))
    except AwsError as problem:
        if problem.is_absence:  # half deleted
            return ()
        raise
    return tuple(
        Subnet(
            id=subnet["SubnetId"],
            zone=subnet["AvailabilityZone"],
            is_private="kubernetes.io/role/internal-elb" in _tags(subnet.get("Tags")),
        )
        for subnet in found
    )


def _stacks(aws: Aws, name: str) -> dict[str, str]:
    return {
        stack["StackName"]: stack["StackStatus"]
        for stack in aws.pages("cloudformation", "describe_stacks", "Stacks")
        if _tags(stack.get("Tags")).get(STACK_TAG) == name and stack["StackStatus"] != "DELETE_COMPLETE"
    }


def _groups(aws: Aws, name: str) -> dict[str, NodeGroup]:
    found = {}
    for group in aws.pages("eks", "list_nodegroups", "nodegroups", clusterName=name):
        try:
            seen = aws.look("eks", "describe_nodegroup", clusterName=name, nodegroupName=group)["nodegroup"]
        except AwsError as problem:
            if problem.is_absence:  # deleted between the two calls
                continue
            raise
        issues = seen.get("health", {}).get("issues", [])
        found[group] = NodeGroup(
            status=seen["status"],
            instance_types=tuple(seen.get("instanceTypes") or ()),
            is_spot=seen.get("capacityType") == "SPOT",
            desired=seen.get("scalingConfig", {}).get("desiredSize", 0),
            problems=tuple(f"{issue.get('code')}: {issue.get('message')}" for issue in issues),
        )
    return found


def _addons(aws: Aws, name: str) -> dict[str, str]:
    found = {}
    for addon in aws.pages("eks", "list_addons", "addons", clusterName=name):
        try:
            seen = aws.look("eks", "describe_addon", clusterName=name, addonName=addon)
        except AwsError as problem:
            if problem.is_absence:
                continue
            raise
        found[addon] = seen["addon"]["status"]
    return found


def _identities(aws: Aws, name: str) -> frozenset[str]:
    found = aws.pages(
        "eks", "list_pod_identity_associations", "associations", clusterName=name, namespace=NAMESPACE
    )
    return frozenset(association["serviceAccount"] for association in found)


def _file_system(aws: Aws, name: str) -> FileSystem | None:
    found = list(
        aws.pages("efs", "describe_file_systems", "FileSystems", CreationToken=file_system_token(name))
    )
    if not found:
        return None
    id_ = found[0]["FileSystemId"]
    targets = aws.pages("efs", "describe_mount_targets", "MountTargets", FileSystemId=id_)
    return FileSystem(
        id=id_,
        state=found[0]["LifeCycleState"],
        mounted={target["SubnetId"]: target["LifeCycleState"] for target in targets},
    )


def _security_group(aws: Aws, name: str) -> tuple[str | None, bool]:
    filters = [
        {"Name": "group-name", "Values": [file_system_group(name)]},
        {"Name": f"tag:{CLUSTER_TAG}", "Values": [name]},
    ]
    found = list(aws.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=filters))
    if not found:
        return None, False
    rules = found[0].get("IpPermissions", [])
    return found[0]["GroupId"], any(rule.get("FromPort") == NFS_PORT for rule in rules)


# --- inside the cluster -------------------------------------------------------------------------


def _kube(runner: Runner, kubeconfig: Path) -> Kube | None:
    asked = ("--kubeconfig", str(kubeconfig))
    objects = _json(runner, "kubectl", *asked, "--request-timeout=15s", "get", _KINDS, "-A", "-o", "json")
    releases = _releases(runner, asked)
    if objects is None or releases is None:
        return None
    items = objects.get("items", [])
    classes = [item for item in items if item["kind"] == "StorageClass"]
    return Kube(
        storage_classes={
            item["metadata"]["name"]: (item["metadata"].get("annotations") or {}).get(FINGERPRINT, "")
            for item in classes
        },
        releases=releases,
        balancers=tuple(
            (item["kind"].lower(), item["metadata"]["namespace"], item["metadata"]["name"])
            for item in items
            if item["kind"] == "Ingress"
            or (item["kind"] == "Service" and item.get("spec", {}).get("type") == "LoadBalancer")
        ),
        claims=sum(item["kind"] == "PersistentVolumeClaim" for item in items),
    )


def _releases(runner: Runner, asked: tuple[str, str]) -> dict[str, Release] | None:
    states = ("--deployed", "--failed", "--pending", "--uninstalling")
    listed = _json(runner, "helm", *asked, "list", "-A", *states, "-o", "json")
    if listed is None:
        return None
    found = {}
    for release in listed:
        name, namespace, status = release["name"], release["namespace"], release["status"]
        history = _json(runner, "helm", *asked, "history", name, "-n", namespace, "--max", "1", "-o", "json")
        said = history[-1].get("description", "") if history and status == "deployed" else ""
        found[name] = Release(
            namespace=namespace,
            status=status,
            fingerprint=said.removeprefix(DESCRIPTION) if said.startswith(DESCRIPTION) else "",
        )
    return found


def _json(runner: Runner, *arguments: str) -> Any:
    answer = runner.look(*arguments)
    if answer.status != 0:
        return None
    try:
        return json.loads(answer.output)
    except json.JSONDecodeError:
        return None


def _tags(tags: list[dict[str, str]] | None) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags or ()}
