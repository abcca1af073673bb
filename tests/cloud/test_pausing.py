"""Pause ends the nodes and nothing else; resume brings back what the file says; status tells the truth."""

from __future__ import annotations

import pytest

from cerebro.cloud.actions import pause, resume, status_lines
from cerebro.errors import ProvisionError
from tests.cloud.conftest import Terminal


@pytest.mark.slow
def test_a_paused_cluster_can_be_deleted(terminal: Terminal) -> None:
    """Its drivers are not there to remove disks."""
    terminal.create()
    pause(terminal.site())
    terminal.cloud.kube.drivers_are_dead = True
    terminal.delete()
    assert "Checked again: no billed resource of demo" in terminal.said


def test_what_does_not_exist_cannot_be_paused(terminal: Terminal) -> None:
    """It can be made."""
    with pytest.raises(ProvisionError, match="create it with `cerebro cluster create`"):
        pause(terminal.site())
    with pytest.raises(ProvisionError, match="create it with `cerebro cluster create`"):
        resume(terminal.site())


def test_status_tells_states_nodes_and_costs(terminal: Terminal) -> None:
    """Of nothing, of a half-made cluster, of a whole one."""
    assert list(status_lines(terminal.site())) == ["No resource of demo exists in us-east-1."]
    terminal.cloud.eksctl_stops_after = 4
    with pytest.raises(ProvisionError):
        terminal.create()
    half = "\n".join(status_lines(terminal.site()))
    assert "nodes spot" in half
    assert "CREATE_FAILED" in half
    assert "eksctl-demo-nodegroup-spot: ROLLBACK_FAILED" in half
    terminal.create()
    whole = "\n".join(status_lines(terminal.site()))
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
    assert "see `cerebro cluster create --dry-run`" in whole
