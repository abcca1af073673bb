"""What is done to a cluster that stands, and leaves it as it was: one for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cerebro.cloud.actions import pause, resume, status_lines
from cerebro.cloud.preflight import Verdict, check
from cerebro.errors import ProvisionError
from tests.cloud.conftest import Terminal, new_terminal

Whole = tuple[Terminal, dict[str, Any]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """A whole cluster, and its shape."""
    with (
        pytest.MonkeyPatch.context() as patch,
        new_terminal(tmp_path_factory.mktemp("standing"), patch) as terminal,
    ):
        terminal.create()
        yield terminal, terminal.shape()


@pytest.fixture
def standing(cluster: Whole) -> Iterator[Terminal]:
    """It, as every test leaves it for the next one."""
    terminal, shape = cluster
    terminal.lines.clear()
    yield terminal
    terminal.write()
    terminal.cloud.quotas.clear()
    assert terminal.shape() == shape


def test_a_second_creation_changes_nothing(standing: Terminal) -> None:
    """What is there as the file wants it is left alone."""
    before = len(standing.cloud.changes)
    standing.create()
    assert standing.cloud.changes[before:] == []
    assert "demo runs." in standing.lines
    assert "helm get notes cerebro" in standing.said  # the chart says how to reach it


def test_a_cluster_that_ran_is_never_removed_by_create(standing: Terminal) -> None:
    """A stack that went bad later, as in an upgrade, may hold data: creation stops and says so."""
    standing.cloud.set_stack("eksctl-demo-cluster", "UPDATE_ROLLBACK_FAILED")
    before = len(standing.cloud.changes)
    with pytest.raises(ProvisionError, match="Nothing is removed, because there may be data in it"):
        standing.create()
    assert standing.cloud.changes[before:] == []
    standing.cloud.set_stack("eksctl-demo-cluster", "CREATE_COMPLETE")


@pytest.mark.parametrize(
    "status",
    [
        "pending-install",
        "pending-upgrade",
        "failed",
    ],
)
def test_a_release_that_helm_has_locked_is_freed(standing: Terminal, status: str) -> None:
    """helm refuses to touch a release whose last command was killed."""
    standing.cloud.kube.releases["cerebro"] |= {"status": status, "description": "Upgrade in progress"}
    standing.create()
    assert standing.cloud.kube.releases["cerebro"]["status"] == "deployed"


def test_a_group_that_cannot_change_is_refused(standing: Terminal) -> None:
    """EKS cannot change a group's instance type; the file's field is named before anything is touched."""
    standing.write(
        workers=[{"name": "spot", "instance_type": "g5.2xlarge", "count": 2, "spot": True, "gpus": 1}]
    )
    before = len(standing.cloud.changes)
    with pytest.raises(ProvisionError):
        standing.create()
    assert "workers[0].instance_type: node group spot has g5.xlarge and cannot change" in standing.said
    assert standing.cloud.changes[before:] == []


def test_pause_and_resume(standing: Terminal) -> None:
    """All nodes go, workers before the control plane; all come back; data and releases stay."""
    before, num_changes = standing.shape(), len(standing.cloud.changes)
    pause(standing.site())
    assert nodes(standing) == {"control": 0, "spot": 0, "firm": 0}
    assert standing.cloud.changes[num_changes:] == ["aws eks update-nodegroup-config"] * 3
    assert "paused" in "\n".join(status_lines(standing.site()))
    pause(standing.site())  # twice is once
    assert len(standing.cloud.changes) == num_changes + 3
    resume(standing.site())
    assert standing.shape() == before


def test_creation_resumes_as_well(standing: Terminal) -> None:
    """A user who forgot the pause is not left with pods that wait for nodes."""
    before = standing.shape()
    pause(standing.site())
    standing.create()
    assert standing.shape() == before


def test_a_dry_run_pauses_nothing(standing: Terminal) -> None:
    """It shows the three calls."""
    before = nodes(standing)
    standing.lines.clear()
    pause(standing.site(is_dry=True))
    assert standing.said.count("eks update-nodegroup-config") == 3
    assert nodes(standing) == before


def nodes(standing: Terminal) -> dict[str, int]:
    """By group."""
    return {name: group.desired for name, group in standing.shape()["groups"].items()}


def test_a_dry_run_shows_what_would_go(standing: Terminal) -> None:
    """Every command, no effect."""
    before, num_changes = standing.shape(), len(standing.cloud.changes)
    standing.delete(is_dry=True)
    assert "$ eksctl delete cluster --name demo" in standing.said
    assert "cloudformation delete-stack" in standing.said
    assert len(standing.cloud.changes) == num_changes
    assert standing.shape() == before


def test_what_runs_already_is_not_asked_for_again(standing: Terminal) -> None:
    """A cluster that stands needs no further quota for what it has."""
    standing.cloud.quotas |= {"L-3819A6DF": 0, "L-DB2E81BA": 0, "L-1216C47A": 0}
    found, _ = check(standing.site())
    assert [finding for finding in found if finding.verdict is Verdict.FAIL] == []
