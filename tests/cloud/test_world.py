"""What a world comes to: which steps are left, which conditions its parts are in, what cannot be changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cerebro.cloud import manifests
from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.names import FINGERPRINT
from cerebro.cloud.observing import one_per_zone
from cerebro.cloud.removing import removal
from cerebro.cloud.steps import creation
from cerebro.cloud.world import (
    Cluster,
    Condition,
    FileSystem,
    Kube,
    NodeGroup,
    Release,
    World,
    conflicts,
    known_zones,
    stack_condition,
    surplus_groups,
)
from tests.cloud.conftest import FILE

DEMO = ClusterFile.model_validate(FILE)
CHART = Path("chart")


def whole() -> World:
    """The world that the file wants."""
    kinds = {"control": ("m5.xlarge", False, 1)}
    kinds |= {group.name: (group.instance_type, group.spot, group.count) for group in DEMO.workers}
    classes = {made["metadata"]["name"]: made["metadata"] for made in manifests.storage_classes(DEMO, "fs-1")}
    releases = [manifests.release(DEMO, name, CHART) for name in manifests.releases(DEMO)]
    return World(
        name="demo",
        cluster=Cluster(status="ACTIVE", version="1.34", subnets=("a", "b"), tags=DEMO.all_tags),
        stacks={
            "eksctl-demo-cluster": "CREATE_COMPLETE",
            **{f"eksctl-demo-nodegroup-{name}": "CREATE_COMPLETE" for name in kinds},
            "cerebro-demo-storage": "CREATE_COMPLETE",
            "cerebro-demo-mounts": "CREATE_COMPLETE",
        },
        groups={
            name: NodeGroup(status="ACTIVE", instance_types=(kind,), is_spot=spot, desired=count)
            for name, (kind, spot, count) in kinds.items()
        },
        addons=dict.fromkeys(manifests.ADDONS, "ACTIVE"),
        identities=manifests.wanted_identities(DEMO),
        file_system=FileSystem(id="fs-1", state="available", num_mounted=2),
        has_kubeconfig=True,
        kube=Kube(
            storage_classes={name: made["annotations"][FINGERPRINT] for name, made in classes.items()},
            releases={
                wanted.name: Release(namespace=wanted.namespace, status="deployed", mark=wanted.mark)
                for wanted in releases
            },
        ),
    )


def left(world: World) -> list[str]:
    """The steps of creation that are needed."""
    return [step.name for step in creation(DEMO, CHART) if step.is_needed(world)]


def test_nothing_is_left_of_the_wanted_world_and_everything_of_none() -> None:
    """Giving the command again costs nothing."""
    assert left(whole()) == []
    names = [step.name for step in creation(DEMO, CHART)]
    assert left(World(name="demo")) == names
    assert (names[0], names[-1], len(names)) == ("control plane", "platform", 11)


WHOLE = whole()


def with_platform(**changes: Any) -> Kube:
    """What is inside the wanted cluster, with another release of the platform."""
    assert WHOLE.kube is not None
    release = replace(WHOLE.kube.releases["cerebro"], **changes)
    return replace(WHOLE.kube, releases={**WHOLE.kube.releases, "cerebro": release})


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"stacks": {**WHOLE.stacks, "eksctl-demo-cluster": "ROLLBACK_COMPLETE"}}, ["control plane"]),
        ({"cluster": None}, ["control plane"]),
        ({"addons": {**WHOLE.addons, "vpc-cni": "CREATE_FAILED"}}, ["network addons"]),
        ({"addons": {**WHOLE.addons, "vpc-cni": "DEGRADED"}}, []),  # heals with the nodes
        ({"addons": {**WHOLE.addons, "coredns": "DEGRADED"}}, ["addons"]),
        ({"groups": {}}, ["node groups"]),
        ({"groups": {**WHOLE.groups, "spot": replace(WHOLE.groups["spot"], desired=0)}}, ["node groups"]),
        ({"identities": frozenset({"cerebro-worker"})}, ["identities"]),
        ({"has_kubeconfig": False}, ["kubeconfig"]),
        ({"file_system": None}, ["file system", "storage classes"]),
        ({"file_system": FileSystem(id="fs-1", state="available", num_mounted=1)}, ["file system"]),
        ({"file_system": FileSystem(id="fs-2", state="available", num_mounted=2)}, ["storage classes"]),
        ({"kube": None}, ["storage classes", "GPU device plugin", "monitoring", "platform"]),
        ({"kube": with_platform(mark="old")}, ["platform"]),
        ({"kube": with_platform(status="failed")}, ["platform"]),
    ],
)  # fmt: skip
def test_what_is_not_as_in_the_file_is_left_to_do(changes: dict[str, Any], steps: list[str]) -> None:
    """That, and nothing else."""
    assert left(replace(WHOLE, **changes)) == steps


def test_nothing_is_removed_from_nothing_and_everything_from_all() -> None:
    """Removal asks what is there, not what was wanted."""
    assert [part.name for part in removal() if part.is_needed(World(name="demo"))] == []
    assert [part.name for part in removal() if part.is_needed(whole())] == [
        "platform",
        "monitoring",
        "GPU device plugin",
        "file system",
        "control plane",
        "CloudFormation stacks",
    ]


def test_steps_follow_what_is_asked_for() -> None:
    """No GPUs, no plugin; no monitoring unless wanted."""
    cpu = {**FILE, "install": {}, "workers": [{"name": "cpu", "instance_type": "m6i.large", "count": 1}]}
    names = [step.name for step in creation(ClusterFile.model_validate(cpu), CHART)]
    assert "GPU device plugin" not in names
    assert "monitoring" not in names
    assert names[-1] == "platform"


@pytest.mark.parametrize(
    ("cluster", "stack", "condition"),
    [
        (None, None, Condition.ABSENT),
        (None, "CREATE_IN_PROGRESS", Condition.CHANGING),
        (None, "ROLLBACK_COMPLETE", Condition.BROKEN),
        (None, "CREATE_COMPLETE", Condition.BROKEN),  # deleted by hand: only the stack is left
        ("CREATING", "CREATE_IN_PROGRESS", Condition.CHANGING),
        ("ACTIVE", "CREATE_IN_PROGRESS", Condition.CHANGING),
        ("ACTIVE", "CREATE_COMPLETE", Condition.READY),
        ("UPDATING", "UPDATE_COMPLETE", Condition.READY),
        ("ACTIVE", "ROLLBACK_FAILED", Condition.BROKEN),
        ("ACTIVE", None, Condition.BROKEN),
        ("FAILED", "CREATE_COMPLETE", Condition.BROKEN),
        ("DELETING", "DELETE_IN_PROGRESS", Condition.CHANGING),
    ],
)
def test_the_control_plane_is_what_both_services_say(
    cluster: str | None, stack: str | None, condition: Condition
) -> None:
    """EKS and CloudFormation can disagree; neither alone is the truth."""
    there = None if cluster is None else Cluster(status=cluster)
    stacks = {} if stack is None else {"eksctl-demo-cluster": stack}
    assert World(name="demo", cluster=there, stacks=stacks).cluster_condition() is condition


@pytest.mark.parametrize(
    ("group", "stack", "condition"),
    [
        (None, None, Condition.ABSENT),
        (None, "CREATE_COMPLETE", Condition.BROKEN),
        ("ACTIVE", "CREATE_COMPLETE", Condition.READY),
        ("DEGRADED", "CREATE_COMPLETE", Condition.READY),
        ("UPDATING", "CREATE_COMPLETE", Condition.CHANGING),
        ("CREATE_FAILED", "ROLLBACK_IN_PROGRESS", Condition.CHANGING),
        ("CREATE_FAILED", "ROLLBACK_FAILED", Condition.BROKEN),
        ("ACTIVE", None, Condition.READY),
    ],
)
def test_a_node_group_is_what_both_services_say(
    group: str | None, stack: str | None, condition: Condition
) -> None:
    """A failed group is removed, one in motion is waited for."""
    groups = {} if group is None else {"spot": NodeGroup(status=group, desired=1)}
    stacks = {} if stack is None else {"eksctl-demo-nodegroup-spot": stack}
    assert World(name="demo", groups=groups, stacks=stacks).group_condition("spot") is condition


def test_conditions_of_stacks_and_addons() -> None:
    """The states that AWS documents."""
    assert stack_condition("UPDATE_ROLLBACK_COMPLETE") is Condition.READY
    assert stack_condition("ROLLBACK_COMPLETE") is Condition.BROKEN
    world = World(name="demo", addons={"coredns": "DEGRADED", "vpc-cni": "CREATE_FAILED"})
    assert world.addon_condition("coredns") is Condition.CHANGING
    assert world.addon_condition("vpc-cni") is Condition.BROKEN
    assert world.addon_condition("kube-proxy") is Condition.ABSENT


def test_one_mount_target_per_zone_where_the_nodes_are() -> None:
    """EFS allows one; private subnets have the nodes."""
    private = [{"Key": "kubernetes.io/role/internal-elb", "Value": "1"}]
    subnets: list[dict[str, Any]] = [
        {"SubnetId": "public-a", "AvailabilityZone": "a"},
        {"SubnetId": "private-a", "AvailabilityZone": "a", "Tags": private},
        {"SubnetId": "public-b", "AvailabilityZone": "b"},
    ]
    assert one_per_zone(subnets) == ("private-a", "public-b")


def test_what_cannot_change_is_named_with_its_field() -> None:
    """Version, type and market of what exists."""
    world = whole()
    assert conflicts(DEMO, world) == []
    assert conflicts(DEMO, World(name="demo")) == []
    changed = {
        **FILE,
        "kubernetes": "1.33",
        "workers": [
            {"name": "spot", "instance_type": "g6.xlarge", "count": 2, "spot": False, "gpus": 1},
            {"name": "new", "instance_type": "g6.xlarge", "count": 2, "gpus": 1},
        ],
    }
    fields = [clash.partition(":")[0] for clash in conflicts(ClusterFile.model_validate(changed), world)]
    assert fields == ["kubernetes", "workers[0].instance_type", "workers[0].spot"]
    assert surplus_groups(ClusterFile.model_validate(changed), world) == ["firm"]


def test_zones_stay_where_the_cluster_is() -> None:
    """Disks are there; the file's zones count only before."""
    file = ClusterFile.model_validate({**FILE, "zones": ["us-east-1c", "us-east-1d"]})
    assert known_zones(file, World(name="demo")) == ("us-east-1c", "us-east-1d")
    cluster = Cluster(status="ACTIVE", tags={"cerebro/zones": "us-east-1b us-east-1a"})
    assert known_zones(file, World(name="demo", cluster=cluster)) == ("us-east-1b", "us-east-1a")
    assert known_zones(DEMO, World(name="demo")) == ()
