"""Pause ends only the nodes, resume restores the file's sizes, and status shows both."""

from __future__ import annotations

import pytest

from cerebro.cloud.actions import status_lines
from cerebro.errors import ProvisionError
from tests.cloud.conftest import Terminal


def test_status_shows_states_nodes_and_costs(terminal: Terminal) -> None:
    """For no cluster, an incomplete one and a complete one."""
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
