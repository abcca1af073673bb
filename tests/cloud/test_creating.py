"""A creation, interrupted anywhere and repeated, ends in the same state."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro.errors import ProvisionError
from tests.cloud.cloud import Fault
from tests.cloud.conftest import EKSCTL_STOPS, Terminal, new_terminal


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """The world after a creation without failures, and its changes."""
    with (
        pytest.MonkeyPatch.context() as patch,
        new_terminal(tmp_path_factory.mktemp("whole"), patch) as terminal,
    ):
        terminal.create()
        return terminal.shape(), list(terminal.cloud.changes)


def test_create_builds_the_whole_platform(whole: tuple[dict[str, Any], list[str]]) -> None:
    """One command makes control plane, nodes, addons, identities, file system, classes and releases."""
    world, _ = whole
    assert world["cluster"][0] == "ACTIVE"
    assert {name: group.desired for name, group in world["groups"].items()} == {
        "control": 1,
        "spot": 2,
        "firm": 1,
    }
    assert world["groups"]["spot"].market == "SPOT"
    assert world["mounted"] == ["us-east-1a", "us-east-1b"]
    assert set(world["releases"]) == {"nvidia-device-plugin", "kube-prometheus-stack", "cerebro"}
    assert {status for status, _ in world["releases"].values()} == {"deployed"}
    assert world["identities"] == {"cerebro-worker", "cerebro-controller", "cerebro-notebook"}


def _repeat(terminal: Terminal, *, after_effect: bool) -> int:
    """Repeat the command, each time with a fault at its first change; return the number of failures."""
    for failures in range(40):
        fault = terminal.cloud.fault = Fault(at=len(terminal.cloud.changes), after_effect=after_effect)
        try:
            terminal.create()
        except ProvisionError:
            continue
        if not fault.has_struck:  # no change remained
            return failures
    raise AssertionError("no end")


def test_a_change_that_failed_without_effect_is_retried(
    terminal: Terminal, whole: tuple[dict[str, Any], list[str]]
) -> None:
    """Each change fails once at its first attempt, so each command makes one more change than the last."""
    terminal.cloud.fails_at_first = set(whole[1])
    for _ in range(len(terminal.cloud.fails_at_first)):
        with pytest.raises(ProvisionError, match="give the same command again"):
            terminal.create()
    assert terminal.cloud.fails_at_first == set()
    terminal.create()
    assert terminal.shape() == whole[0]


@pytest.mark.slow
def test_a_change_whose_answer_was_lost_is_not_repeated(
    terminal: Terminal, whole: tuple[dict[str, Any], list[str]]
) -> None:
    """Each command makes one change and gets only an error; the final state equals a run without errors."""
    failures = _repeat(terminal, after_effect=True)
    assert failures >= len(whole[1]) - 1
    assert terminal.shape() == whole[0]


@pytest.mark.slow
@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(8))
def test_after_a_failure_at_any_change_the_same_command_completes(
    terminal: Terminal, whole: tuple[dict[str, Any], list[str]], at: int, after_effect: bool
) -> None:
    """Each change fails once, before or after its effect; the next command reaches the same state."""
    world, changes = whole
    assert len(changes) == 8, changes  # the range above covers all changes
    fault = terminal.cloud.fault = Fault(at=at, after_effect=after_effect)
    with pytest.raises(ProvisionError, match="give the same command again"):
        terminal.create()
    assert fault.has_struck
    terminal.create()
    assert terminal.shape() == world


@pytest.mark.slow
@pytest.mark.parametrize("part", EKSCTL_STOPS)
def test_creation_resumes_after_eksctl_failed_at_any_part(
    terminal: Terminal, whole: tuple[dict[str, Any], list[str]], part: int
) -> None:
    """The same command, or the command of the next step, creates the missing parts."""
    terminal.cloud.eksctl_stops_after = part
    with pytest.raises(ProvisionError, match=r"(?s)step `.*` failed: eksctl .* status 1"):
        terminal.create()
    terminal.create()
    assert terminal.shape() == whole[0]


def test_create_waits_for_a_stack_in_creation(
    terminal: Terminal, whole: tuple[dict[str, Any], list[str]]
) -> None:
    """CloudFormation continues after Ctrl-C; the next command waits for it and uses the result."""
    terminal.cloud.eksctl_stops_after = 1
    with pytest.raises(ProvisionError):
        terminal.create()
    terminal.cloud.set_stack("eksctl-demo-cluster", "CREATE_IN_PROGRESS")
    terminal.cloud.ticks = [
        lambda: None,
        lambda: terminal.cloud.set_stack("eksctl-demo-cluster", "CREATE_COMPLETE"),
    ]
    terminal.create()
    assert "waiting for eksctl-demo-cluster" in terminal.said
    assert terminal.shape() == whole[0]


def test_a_failure_names_step_command_status_and_last_lines(terminal: Terminal) -> None:
    """The message is enough to understand the failure; the log has it, too."""
    terminal.cloud.eksctl_stops_after = 2
    with pytest.raises(ProvisionError) as failure:
        terminal.create()
    said = str(failure.value)
    assert "step `control plane` failed: eksctl create cluster -f" in said
    assert "ended with status 1; its last lines:\n    Error: failed to create what the file names" in said
    assert "give the same command again" in said
    log = (terminal.folder / "home" / "clusters" / "us-east-1.demo" / "cluster.log").read_text()
    assert "failed to create what the file names" in log


def test_a_dry_run_shows_everything_and_changes_nothing(terminal: Terminal) -> None:
    """Commands, generated files and AWS calls are printed; account and disk stay unchanged."""
    terminal.create(is_dry=True)
    assert terminal.cloud.changes == []
    assert not (terminal.folder / "home").exists()
    for shown in (
        "$ eksctl create cluster -f",
        "kind: ClusterConfig",
        "$ aws cloudformation deploy",
        "provisioner: efs.csi.aws.com",
        "upgrade --install cerebro",
        "9 of 9 steps would be taken",
    ):
        assert shown in terminal.said, shown
    assert "This was a dry run" in terminal.lines[-1]


def test_a_failed_check_prevents_all_changes(terminal: Terminal) -> None:
    """An instance type with too few GPUs is found before the first change."""
    terminal.write(workers=[{"name": "gpu", "instance_type": "g5.xlarge", "count": 1, "gpus": 4}])
    with pytest.raises(ProvisionError, match="Nothing was created or changed"):
        terminal.create()
    assert "FAIL  workers[0].gpus: 4 asked for, g5.xlarge has 1 of NVIDIA" in terminal.said
    assert terminal.cloud.changes == []


@pytest.mark.slow
def test_a_group_added_to_the_file_is_added_to_the_cluster(terminal: Terminal) -> None:
    """Creation also extends a cluster; a group removed from the file is named and kept."""
    terminal.create()
    groups = [
        {"name": "spot", "instance_type": "g5.xlarge", "count": 3, "spot": True, "gpus": 1},
        {"name": "late", "instance_type": "g5.xlarge", "fallbacks": ["g6.xlarge"], "count": 1, "gpus": 1},
    ]
    terminal.write(workers=groups)
    terminal.create()
    groups_now = terminal.shape()["groups"]
    assert groups_now["late"].instance_types == ["g5.xlarge", "g6.xlarge"]
    assert {name: group.desired for name, group in groups_now.items()} == {
        "control": 1,
        "spot": 3,
        "late": 1,
        "firm": 1,
    }
    assert terminal.cloud.kube.releases["cerebro"]["values"]["worker"]["replicas"] == 4
    assert "Node group firm is not in the file" in terminal.said


def test_a_foreign_cluster_with_the_same_name_is_not_touched(terminal: Terminal) -> None:
    """Neither completed nor deleted."""
    ec2 = terminal.cloud.client("ec2")
    subnets = [subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"][:2]]
    terminal.cloud.client("eks").create_cluster(
        name="demo",
        version="1.34",
        roleArn="arn:aws:iam::123456789012:role/eks",
        resourcesVpcConfig={"subnetIds": subnets},
    )
    with pytest.raises(ProvisionError):
        terminal.create()
    assert "`cerebro cluster` did not create" in terminal.said
    with pytest.raises(ProvisionError, match="`cerebro cluster` did not create"):
        terminal.delete()
    assert terminal.cloud.changes == []


@pytest.mark.slow
def test_a_deleted_control_plane_is_recreated_with_the_same_data(terminal: Terminal) -> None:
    """The file system is detached so the network can be recreated, and is mounted again."""
    terminal.create()
    before, system = terminal.shape(), terminal.site().observe().file_system
    terminal.cloud.drop_cluster("demo")
    terminal.create()
    assert terminal.site().observe().file_system == system
    after = terminal.shape()
    assert (after["mounted"], after["identities"]) == (before["mounted"], before["identities"])


def test_a_stack_without_its_file_system_is_an_error(terminal: Terminal) -> None:
    """If only its tag is lost, any change could hide data, so nothing changes."""
    terminal.create()
    efs = terminal.cloud.client("efs")
    (system,) = efs.describe_file_systems()["FileSystems"]
    efs.untag_resource(ResourceId=system["FileSystemId"], TagKeys=["cerebro/cluster"])
    with pytest.raises(ProvisionError, match="stack cerebro-demo exists without its file system"):
        terminal.create()
    assert len(efs.describe_file_systems()["FileSystems"]) == 1


def test_two_commands_at_once_are_refused(terminal: Terminal) -> None:
    """The error names the running command."""
    site = terminal.site()
    with site.locked(), pytest.raises(ProvisionError, match="is at work on demo"), terminal.site().locked():
        pass
