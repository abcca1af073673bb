"""Looks at AWS and at the cluster, and says what is there as a `World`. Reads only; safe at any time.

AWS is the truth: no record of earlier commands is consulted. Stacks are recognised by their tags, not by the beginning
of their name, because ``eksctl-demo-`` also begins the stacks of a cluster named ``demo-two``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cerebro.cloud.aws import Aws, AwsError
from cerebro.cloud.inventory import resources
from cerebro.cloud.names import CLUSTER_TAG, FINGERPRINT, NAMESPACE, STACK_TAG
from cerebro.cloud.runner import Runner
from cerebro.cloud.world import Cluster, FileSystem, Kube, NodeGroup, Release, World

DESCRIPTION = "cerebro "
"""Begins the description of a release that we made; its fingerprint follows."""
_PRIVATE = "kubernetes.io/role/internal-elb"
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
    if aws.is_offline:
        return World(name=name)
    cluster = _cluster(aws, name)
    inside: dict[str, Any] = {}
    if cluster is not None:
        is_reachable = kubeconfig.is_file() and cluster.endpoint in kubeconfig.read_text()
        is_up = is_reachable and cluster.status in ("ACTIVE", "UPDATING")
        inside = {
            "groups": _groups(aws, name),
            "addons": _addons(aws, name),
            "identities": frozenset(
                aws.find("eks", "list_pod_identity_associations", "associations[].serviceAccount",
                         clusterName=name, namespace=NAMESPACE)
            ),
            "has_kubeconfig": is_reachable,
            "kube": _kube(runner, ("--kubeconfig", str(kubeconfig))) if is_up else None,
        }  # fmt: skip
    return World(
        name=name,
        cluster=cluster,
        stacks=_stacks(aws, name),
        file_system=_file_system(aws, name),
        resources=resources(aws, name) if with_resources else (),
        **inside,
    )


def _look(aws: Aws, operation: str, key: str, **arguments: Any) -> dict[str, Any] | None:
    """Of EKS; None if it is not there, or not there any more."""
    try:
        found: dict[str, Any] = aws.look("eks", operation, **arguments)[key]
    except AwsError as problem:
        if problem.is_absence:
            return None
        raise
    return found


def _cluster(aws: Aws, name: str) -> Cluster | None:
    found = _look(aws, "describe_cluster", "cluster", name=name)
    if found is None:
        return None
    network = found.get("resourcesVpcConfig", {})
    return Cluster(
        status=found["status"],
        version=found.get("version", ""),
        network=network.get("vpcId", ""),
        subnets=_subnets(aws, network.get("subnetIds", [])),
        security_group=network.get("clusterSecurityGroupId", ""),
        endpoint=found.get("endpoint", ""),
        tags=found.get("tags", {}),
    )


def _subnets(aws: Aws, ids: list[str]) -> tuple[str, ...]:
    try:
        return one_per_zone(aws.find("ec2", "describe_subnets", "Subnets[]", SubnetIds=ids)) if ids else ()
    except AwsError as problem:
        if problem.is_absence:  # half deleted
            return ()
        raise


def one_per_zone(subnets: list[dict[str, Any]]) -> tuple[str, ...]:
    """EFS allows one mount target per zone; private subnets, where the nodes are, come first."""
    chosen: dict[str, str] = {}
    ordered = sorted(
        (_PRIVATE not in _tags(each), each["SubnetId"], each["AvailabilityZone"]) for each in subnets
    )
    for _, id_, zone in ordered:
        chosen.setdefault(zone, id_)
    return tuple(sorted(chosen.values()))


def _stacks(aws: Aws, name: str) -> dict[str, str]:
    return {
        stack["StackName"]: stack["StackStatus"]
        for stack in aws.find(
            "cloudformation", "describe_stacks", "Stacks[?StackStatus != 'DELETE_COMPLETE'][]"
        )
        if name in (_tags(stack).get(STACK_TAG), _tags(stack).get(CLUSTER_TAG))
    }


def _groups(aws: Aws, name: str) -> dict[str, NodeGroup]:
    found = {}
    for group in aws.find("eks", "list_nodegroups", "nodegroups[]", clusterName=name):
        seen = _look(aws, "describe_nodegroup", "nodegroup", clusterName=name, nodegroupName=group)
        if seen is None:
            continue
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
    names = aws.find("eks", "list_addons", "addons[]", clusterName=name)
    seen = {each: _look(aws, "describe_addon", "addon", clusterName=name, addonName=each) for each in names}
    return {each: addon["status"] for each, addon in seen.items() if addon is not None}


def _file_system(aws: Aws, name: str) -> FileSystem | None:
    for found in aws.find("efs", "describe_file_systems", "FileSystems[]"):
        if _tags(found).get(CLUSTER_TAG) != name or found["LifeCycleState"] == "deleted":
            continue
        usable = "MountTargets[?LifeCycleState == 'available'].MountTargetId[]"
        id_ = found["FileSystemId"]
        return FileSystem(
            id=id_,
            state=found["LifeCycleState"],
            num_mounted=len(aws.find("efs", "describe_mount_targets", usable, FileSystemId=id_)),
            is_of_stack=found["CreationToken"] != f"cerebro-{name}",
        )
    return None


# --- inside the cluster -------------------------------------------------------------------------


def _kube(runner: Runner, asked: tuple[str, str]) -> Kube | None:
    objects = _json(runner, "kubectl", *asked, "--request-timeout=15s", "get", _KINDS, "-A", "-o", "json")
    releases = _releases(runner, asked)
    if objects is None or releases is None:
        return None
    items = objects.get("items", [])
    return Kube(
        storage_classes={
            item["metadata"]["name"]: (item["metadata"].get("annotations") or {}).get(FINGERPRINT, "")
            for item in items
            if item["kind"] == "StorageClass"
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
        mark = said.removeprefix(DESCRIPTION) if said.startswith(DESCRIPTION) else ""
        found[name] = Release(namespace=namespace, status=status, mark=mark)
    return found


def _json(runner: Runner, *arguments: str) -> Any:
    answer = runner.look(*arguments)
    try:
        return json.loads(answer.output) if answer.status == 0 else None
    except json.JSONDecodeError:
        return None


def _tags(thing: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in thing.get("Tags") or ()}
