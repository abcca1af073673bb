"""Pause ends the nodes and nothing else; resume brings back what the file says; status tells the truth."""

from __future__ import annotations

import pytest

from cerebro.cloud.actions import pause, resume, status_lines
from cerebro.errors import ProvisionError
from tests.provision.conftest import Desk


def nodes(desk: Desk) -> dict[str, int]:
    """By group."""
    return {name: group.desired for name, group in desk.shape()["groups"].items()}


def test_pause_and_resume(desk: Desk) -> None:
    """All nodes go, workers before the control plane; all come back; data and releases stay."""
    desk.create()
    before, num_changes = desk.shape(), len(desk.cloud.changes)
    pause(desk.site())
    assert nodes(desk) == {"control": 0, "spot": 0, "firm": 0}
    assert desk.cloud.changes[num_changes:] == ["eks UpdateNodegroupConfig"] * 3
    assert "paused" in "\n".join(status_lines(desk.site()))
    pause(desk.site())  # twice is once
    assert len(desk.cloud.changes) == num_changes + 3
    resume(desk.site())
    assert desk.shape() == before


@pytest.mark.slow
def test_creation_resumes_as_well(desk: Desk) -> None:
    """A user who forgot the pause is not left with pods that wait for nodes."""
    desk.create()
    before = desk.shape()
    pause(desk.site())
    desk.create()
    assert desk.shape() == before


@pytest.mark.slow
def test_a_paused_cluster_can_be_deleted(desk: Desk) -> None:
    """Its drivers are not there to remove disks."""
    desk.create()
    pause(desk.site())
    desk.cloud.kube.drivers_are_dead = True
    desk.delete()
    assert "Looked again: nothing of demo is left" in desk.said


@pytest.mark.slow
def test_a_dry_run_pauses_nothing(desk: Desk) -> None:
    """It shows the three calls."""
    desk.create()
    before = nodes(desk)
    desk.lines.clear()
    pause(desk.site(is_dry=True))
    assert desk.said.count("eks update-nodegroup-config") == 3
    assert nodes(desk) == before


def test_what_does_not_exist_cannot_be_paused(desk: Desk) -> None:
    """It can be made."""
    with pytest.raises(ProvisionError, match="`cerebro cluster create` makes it"):
        pause(desk.site())
    with pytest.raises(ProvisionError, match="`cerebro cluster create` makes it"):
        resume(desk.site())


def test_status_tells_states_nodes_and_costs(desk: Desk) -> None:
    """Of nothing, of a half-made cluster, of a whole one."""
    assert list(status_lines(desk.site())) == ["There is nothing of demo in us-east-1."]
    desk.cloud.eksctl_stops_after = 4
    with pytest.raises(ProvisionError):
        desk.create()
    half = "\n".join(status_lines(desk.site()))
    assert "nodes spot" in half
    assert "CREATE_FAILED" in half
    assert "eksctl-demo-nodegroup-spot: ROLLBACK_FAILED" in half
    assert "not as in the file: node groups" in half
    desk.create()
    whole = "\n".join(status_lines(desk.site()))
    assert "release          cerebro: deployed" in whole
    assert "nodes spot             2 of 2  g5.xlarge spot  ACTIVE" in whole
    for cost in (
        "EKS cluster x 1",
        "NAT gateway x 1",
        "elastic address x 1",
        "file system x 1",
        "volume x",
        "instance x 4",
    ):
        assert cost in whole, cost
    assert "not as in the file" not in whole
