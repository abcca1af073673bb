"""Pause ends the nodes and nothing else; resume brings back what the file says; status tells the truth."""

from __future__ import annotations

import pytest

from cerebro.cloud.actions import pause, resume, status_lines
from cerebro.errors import ProvisionError
from tests.cloud.conftest import Desk


@pytest.mark.slow
def test_a_paused_cluster_can_be_deleted(desk: Desk) -> None:
    """Its drivers are not there to remove disks."""
    desk.create()
    pause(desk.site())
    desk.cloud.kube.drivers_are_dead = True
    desk.delete()
    assert "Looked again: nothing of demo is left" in desk.said


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
    assert "create --dry-run` shows it" in whole
