"""Conclusions from a world: remaining steps and unchangeable settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.world import Cluster, NodeGroup, World, conflicts
from tests.cloud.conftest import FILE

DEMO = ClusterFile.model_validate(FILE)


def whole() -> World:
    """The part of AWS' answer for the file's cluster that a file can contradict."""
    kinds = {"control": ("m5.xlarge", False, 1)}
    kinds |= {group.name: (group.instance_type, group.spot, group.count) for group in DEMO.workers}
    return World(
        name="demo",
        cluster=Cluster(status="ACTIVE", version="1.34", tags=DEMO.all_tags),
        stacks={"eksctl-demo-cluster": "CREATE_COMPLETE"},
        groups={
            name: NodeGroup(
                status="ACTIVE", instance_types=[kind], market="SPOT" if spot else "ON_DEMAND", desired=count
            )
            for name, (kind, spot, count) in kinds.items()
        },
    )


def changed(**changes: Any) -> ClusterFile:
    """Return the file with changes."""
    return ClusterFile.model_validate({**FILE, **changes})


def test_impossible_changes_are_named_with_their_fields() -> None:
    """Version, instance type and market of an existing cluster."""
    assert conflicts(DEMO, whole()) == []
    assert conflicts(DEMO, World(name="demo")) == []
    other = changed(
        kubernetes="1.33",
        workers=[
            {"name": "spot", "instance_type": "g6.xlarge", "count": 2, "spot": False, "gpus": 1},
            {"name": "new", "instance_type": "g6.xlarge", "count": 2, "gpus": 1},
        ],
    )
    fields = [clash.partition(":")[0] for clash in conflicts(other, whole())]
    assert fields == ["kubernetes", "workers[0].instance_type", "workers[0].spot"]


def test_fallbacks_cannot_be_added_to_an_existing_group() -> None:
    """EKS cannot change types; the group's original fallbacks are accepted."""
    spot = {"name": "spot", "instance_type": "g5.xlarge", "count": 2, "spot": True, "gpus": 1}
    other = changed(workers=[{**spot, "fallbacks": ["g6.xlarge"]}])
    (clash,) = conflicts(other, whole())
    assert clash.startswith("workers[0].fallbacks: node group spot has g5.xlarge and cannot change: give")
    types = ["g5.xlarge", "g6.xlarge"]
    groups = {"spot": whole().groups["spot"].model_copy(update={"instance_types": types})}
    assert conflicts(other, replace(whole(), groups=groups)) == []


@pytest.mark.parametrize(
    ("status", "is_ready", "is_moving"),
    [
        ("CREATE_COMPLETE", True, False),
        ("UPDATE_ROLLBACK_COMPLETE", True, False),
        ("ROLLBACK_COMPLETE", False, False),
        ("DELETE_FAILED", False, False),
        ("CREATE_IN_PROGRESS", False, True),
        ("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", False, True),
        ("REVIEW_IN_PROGRESS", False, False),  # a change set that was never executed: waiting would never end
    ],
)
def test_stacks_are_ready_or_moving_or_broken(status: str, is_ready: bool, is_moving: bool) -> None:
    """By AWS' documented states."""
    world = World(name="demo", stacks={"cerebro-demo": status})
    assert (world.is_stack_ready("cerebro-demo"), bool(world.moving_stacks)) == (is_ready, is_moving)
    assert not world.is_stack_ready("another")
