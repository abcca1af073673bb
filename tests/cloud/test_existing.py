"""Commands that leave an existing cluster unchanged; all tests share one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cerebro.cloud.actions import pause, resume, status_lines
from cerebro.errors import ProvisionError
from tests.cloud.conftest import Terminal, new_terminal

Whole = tuple[Terminal, dict[str, Any]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """A complete cluster and its shape."""
    with (
        pytest.MonkeyPatch.context() as patch,
        new_terminal(tmp_path_factory.mktemp("existing"), patch) as terminal,
    ):
        terminal.create()
        yield terminal, terminal.shape()


@pytest.fixture
def existing(cluster: Whole) -> Iterator[Terminal]:
    """The shared cluster; each test must leave it unchanged."""
    terminal, shape = cluster
    terminal.lines.clear()
    yield terminal
    terminal.write()
    terminal.cloud.quotas.clear()
    assert terminal.shape() == shape


def test_a_second_creation_changes_nothing(existing: Terminal) -> None:
    """Resources that match the file are not touched."""
    before = len(existing.cloud.changes)
    existing.create()
    assert existing.cloud.changes[before:] == []
    assert "demo runs." in existing.lines
    assert "helm get notes cerebro" in existing.said  # the chart prints how to reach it


def test_a_cluster_that_ran_is_never_removed_by_create(existing: Terminal) -> None:
    """A stack that failed later, as in an upgrade, may hold data, so creation stops with an error."""
    existing.cloud.set_stack("eksctl-demo-cluster", "UPDATE_ROLLBACK_FAILED")
    before = len(existing.cloud.changes)
    with pytest.raises(ProvisionError, match="Nothing is removed, because it may contain data"):
        existing.create()
    assert existing.cloud.changes[before:] == []
    existing.cloud.set_stack("eksctl-demo-cluster", "CREATE_COMPLETE")


@pytest.mark.parametrize(
    "status",
    [
        "pending-install",
        "pending-upgrade",
        "failed",
    ],
)
def test_a_release_locked_by_helm_is_unlocked(existing: Terminal, status: str) -> None:
    """helm locks a release if its command is killed."""
    existing.cloud.kube.releases["cerebro"] |= {"status": status, "description": "Upgrade in progress"}
    existing.create()
    assert existing.cloud.kube.releases["cerebro"]["status"] == "deployed"


def test_a_change_of_an_instance_type_is_refused(existing: Terminal) -> None:
    """EKS cannot change a group's instance type; the error names the file's field before any change."""
    existing.write(
        workers=[{"name": "spot", "instance_type": "g5.2xlarge", "count": 2, "spot": True, "gpus": 1}]
    )
    before = len(existing.cloud.changes)
    with pytest.raises(ProvisionError):
        existing.create()
    assert "workers[0].instance_type: node group spot has g5.xlarge and cannot change" in existing.said
    assert existing.cloud.changes[before:] == []


def test_pause_and_resume(existing: Terminal) -> None:
    """Worker nodes go before the control nodes, and all return; data and releases stay."""
    before, num_changes = existing.shape(), len(existing.cloud.changes)
    pause(existing.site())
    assert nodes(existing) == {"control": 0, "spot": 0, "firm": 0}
    assert existing.cloud.changes[num_changes:] == ["aws eks update-nodegroup-config"] * 3
    assert "paused" in "\n".join(status_lines(existing.site()))
    pause(existing.site())  # twice has no further effect
    assert len(existing.cloud.changes) == num_changes + 3
    resume(existing.site())
    assert existing.shape() == before


def nodes(existing: Terminal) -> dict[str, int]:
    """Return the number of nodes by group."""
    return {name: group.desired for name, group in existing.shape()["groups"].items()}
