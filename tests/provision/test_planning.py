"""The planner: from any world it leads to the wanted one, and asks for nothing that is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.planning import conflicts, known_zones, next_step, plan, removals, surplus_groups
from cerebro.cloud.steps import creation, removal
from cerebro.cloud.world import (
    Cluster,
    Condition,
    Kube,
    NodeGroup,
    Subnet,
    World,
    addon_condition,
    cluster_condition,
    group_condition,
    mount_subnets,
    stack_condition,
)
from tests.provision.conftest import FILE

DEMO = ClusterFile.model_validate(FILE)
STEPS = creation(DEMO, Path("chart"))


def whole() -> World:
    """The world that the file wants."""
    world = World()
    for step in STEPS:
        world = step.after(world)
    return world


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """The wanted world with anything missing from it, or in another state."""
    world = whole()
    statuses = st.sampled_from(
        ["CREATE_COMPLETE", "ROLLBACK_COMPLETE", "CREATE_IN_PROGRESS", "DELETE_FAILED"]
    )
    stacks = {name: draw(statuses) for name in world.stacks if draw(st.booleans())}
    groups = {
        name: replace(
            group, desired=draw(st.integers(0, 3)), status=draw(st.sampled_from(["ACTIVE", "CREATE_FAILED"]))
        )
        for name, group in world.groups.items()
        if draw(st.booleans())
    }
    addons = {
        name: draw(st.sampled_from(["ACTIVE", "CREATE_FAILED", "DEGRADED"]))
        for name in world.addons
        if draw(st.booleans())
    }
    assert world.kube is not None
    kube = Kube(
        storage_classes={
            name: draw(st.sampled_from([mark, "old"])) for name, mark in world.kube.storage_classes.items()
        },
        releases={name: release for name, release in world.kube.releases.items() if draw(st.booleans())},
    )
    return replace(
        world,
        cluster=draw(st.sampled_from([None, world.cluster])),
        stacks=stacks,
        groups=groups,
        addons=addons,
        identities=frozenset(draw(st.sets(st.sampled_from(sorted(world.identities))))),
        file_system=draw(st.sampled_from([None, world.file_system])),
        is_file_system_group_open=draw(st.booleans()),
        has_kubeconfig=draw(st.booleans()),
        kube=draw(st.sampled_from([None, kube])),
    )


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_the_plan_ends_and_leaves_nothing_to_do(world: World) -> None:
    """From anywhere, in at most as many steps as there are, each at most once."""
    taken = []
    for step, seen in plan(STEPS, world):
        taken.append(step.name)
        assert len(taken) <= len(STEPS), taken
        world = step.after(seen)
    assert next_step(STEPS, world) is None
    assert len(set(taken)) == len(taken)


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_a_step_is_taken_only_when_all_before_it_are_done(world: World) -> None:
    """Each step may rely on those before it."""
    for step, seen in plan(STEPS, world):
        assert all(before.is_done(seen) for before in STEPS[: STEPS.index(step)])
        assert not step.is_done(seen)
        assert step.is_done(step.after(seen)), step.name


def test_nothing_is_planned_for_the_wanted_world() -> None:
    """Giving the command again costs nothing."""
    assert list(plan(STEPS, whole())) == []


def test_nothing_is_removed_from_nothing_and_everything_from_all() -> None:
    """Removal asks what is there, not what was wanted."""
    parts = removal(DEMO, Path("chart"))
    assert removals(parts, World()) == []
    names = [part.name for part in removals(parts, whole())]
    assert names == [
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
    names = [step.name for step in creation(ClusterFile.model_validate(cpu), Path("chart"))]
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
    there = None if cluster is None else replace(_cluster(), status=cluster)
    assert cluster_condition(there, stack) is condition


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
    there = None if group is None else NodeGroup(status=group, instance_types=(), is_spot=False, desired=1)
    assert group_condition(there, stack) is condition


def test_conditions_of_stacks_and_addons() -> None:
    """The states that AWS documents."""
    assert stack_condition("UPDATE_ROLLBACK_COMPLETE") is Condition.READY
    assert stack_condition("ROLLBACK_COMPLETE") is Condition.BROKEN
    assert addon_condition("DEGRADED") is Condition.CHANGING
    assert addon_condition("CREATE_FAILED") is Condition.BROKEN
    assert addon_condition(None) is Condition.ABSENT


def test_one_mount_target_per_zone_where_the_nodes_are() -> None:
    """EFS allows one; private subnets have the nodes."""
    subnets = (
        Subnet(id="public-a", zone="a", is_private=False),
        Subnet(id="private-a", zone="a", is_private=True),
        Subnet(id="public-b", zone="b", is_private=False),
    )
    assert mount_subnets(replace(_cluster(), subnets=subnets)) == ("private-a", "public-b")


def test_what_cannot_change_is_named_with_its_field() -> None:
    """Version, type and market of what exists."""
    world = whole()
    assert conflicts(DEMO, world) == []
    assert conflicts(DEMO, World()) == []
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
    assert known_zones(file, World()) == ("us-east-1c", "us-east-1d")
    cluster = replace(_cluster(), tags={"cerebro/zones": "us-east-1b us-east-1a"})
    assert known_zones(file, World(cluster=cluster)) == ("us-east-1b", "us-east-1a")
    assert known_zones(DEMO, World()) == ()


def _cluster() -> Cluster:
    return Cluster(status="ACTIVE", version="1.34", vpc="vpc", subnets=(), security_group="sg", tags={})
