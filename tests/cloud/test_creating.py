"""Creation, whole and broken anywhere, ends in the same world."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro.cloud.actions import create, status_lines
from cerebro.errors import ProvisionError
from tests.cloud.cloud import Fault
from tests.cloud.conftest import EKSCTL_STOPS, Desk, new_desk, no_credentials


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """The world after a creation without failures, and the changes that made it."""
    with pytest.MonkeyPatch.context() as patch, new_desk(tmp_path_factory.mktemp("whole"), patch) as desk:
        desk.create()
        return desk.shape(), list(desk.cloud.changes)


def test_from_nothing_to_a_running_platform(whole: tuple[dict[str, Any], list[str]]) -> None:
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


def _repeat(desk: Desk, *, after_effect: bool) -> int:
    """Give the command until it succeeds, each time breaking the first change; returns how often it failed."""
    for failures in range(40):
        fault = desk.cloud.fault = Fault(at=len(desk.cloud.changes), after_effect=after_effect)
        try:
            desk.create()
        except ProvisionError:
            continue
        if not fault.has_struck:  # nothing was left to change
            return failures
    raise AssertionError("no end")


def test_every_change_is_tried_again_that_failed_without_effect(
    desk: Desk, whole: tuple[dict[str, Any], list[str]]
) -> None:
    """Each change fails once, the first time it is tried: the k-th command gets one change further than the last."""
    desk.cloud.fails_at_first = set(whole[1])
    for _ in range(len(desk.cloud.fails_at_first)):
        with pytest.raises(ProvisionError, match="give the same command again"):
            desk.create()
    assert desk.cloud.fails_at_first == set()
    desk.create()
    assert desk.shape() == whole[0]


def test_every_answer_lost_after_its_effect_is_made_up_for(
    desk: Desk, whole: tuple[dict[str, Any], list[str]]
) -> None:
    """Each command makes one change and hears only an error; in the end all is as without errors."""
    failures = _repeat(desk, after_effect=True)
    assert failures >= len(whole[1]) - 1
    assert desk.shape() == whole[0]


@pytest.mark.slow
@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(8))
def test_broken_at_any_change_the_same_command_goes_on(
    desk: Desk, whole: tuple[dict[str, Any], list[str]], at: int, after_effect: bool
) -> None:
    """Each change fails once, before or after its effect; the next command ends where an unbroken one does."""
    world, changes = whole
    assert len(changes) == 8, changes  # the range above covers them all
    fault = desk.cloud.fault = Fault(at=at, after_effect=after_effect)
    with pytest.raises(ProvisionError, match="give the same command again"):
        desk.create()
    assert fault.has_struck
    desk.create()
    assert desk.shape() == world


@pytest.mark.parametrize("part", EKSCTL_STOPS)
def test_whatever_part_eksctl_stopped_at_is_gone_on_from(
    desk: Desk, whole: tuple[dict[str, Any], list[str]], part: int
) -> None:
    """What it had not made is made by the same command again, or by that of the next step."""
    desk.cloud.eksctl_stops_after = part
    with pytest.raises(ProvisionError, match=r"(?s)step `.*` failed: eksctl .* status 1"):
        desk.create()
    desk.create()
    assert desk.shape() == whole[0]


def test_a_stack_that_is_still_being_made_is_waited_for(
    desk: Desk, whole: tuple[dict[str, Any], list[str]]
) -> None:
    """After Ctrl-C CloudFormation goes on; the next command waits for it, and uses what came of it."""
    desk.cloud.eksctl_stops_after = 1
    with pytest.raises(ProvisionError):
        desk.create()
    desk.cloud.set_stack("eksctl-demo-cluster", "CREATE_IN_PROGRESS")
    desk.cloud.ticks = [lambda: None, lambda: desk.cloud.set_stack("eksctl-demo-cluster", "CREATE_COMPLETE")]
    desk.create()
    assert "waiting for eksctl-demo-cluster" in desk.said
    assert desk.shape() == whole[0]


@pytest.mark.slow
def test_a_network_that_was_rolled_back_is_removed_and_made_again(
    desk: Desk, whole: tuple[dict[str, Any], list[str]]
) -> None:
    """A stack that failed can only be deleted; no cluster ever ran in it, so nothing is lost."""
    desk.cloud.eksctl_stops_after = 0
    with pytest.raises(ProvisionError):
        desk.create()
    desk.cloud.set_stack("eksctl-demo-cluster", "ROLLBACK_COMPLETE")
    desk.create()
    assert "an earlier attempt has failed" in desk.said
    assert desk.shape() == whole[0]


@pytest.mark.slow
def test_ctrl_c_leaves_a_state_to_go_on_from(desk: Desk, whole: tuple[dict[str, Any], list[str]]) -> None:
    """The interruption is passed on, with a word on how to continue."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    desk.cloud.eksctl_stops_after = 1
    with pytest.raises(ProvisionError):
        desk.create()
    desk.cloud.set_stack("eksctl-demo-cluster", "CREATE_IN_PROGRESS")
    desk.cloud.ticks = [interrupted]
    with pytest.raises(KeyboardInterrupt):
        desk.create()
    desk.cloud.set_stack("eksctl-demo-cluster", "CREATE_COMPLETE")
    desk.create()
    assert desk.shape() == whole[0]


def test_a_failure_names_step_command_status_and_last_lines(desk: Desk) -> None:
    """The user needs no log to know what happened and what to do; the log has it all the same."""
    desk.cloud.eksctl_stops_after = 2
    with pytest.raises(ProvisionError) as failure:
        desk.create()
    said = str(failure.value)
    assert "step `control plane` failed: eksctl create cluster -f" in said
    assert "ended with status 1; its last lines:\n    Error: failed to create what the file names" in said
    assert "give the same command again" in said
    log = (desk.folder / "home" / "clusters" / "us-east-1.demo" / "cluster.log").read_text()
    assert "failed to create what the file names" in log


def test_a_dry_run_shows_everything_and_changes_nothing(desk: Desk) -> None:
    """Commands, generated files and AWS calls are printed; neither the account nor the disk is touched."""
    desk.create(is_dry=True)
    assert desk.cloud.changes == []
    assert not (desk.folder / "home").exists()
    for shown in (
        "$ eksctl create cluster -f",
        "kind: ClusterConfig",
        "$ aws cloudformation deploy",
        "provisioner: efs.csi.aws.com",
        "upgrade --install cerebro",
        "9 of 9 steps would be taken",
    ):
        assert shown in desk.said, shown
    assert "This was a dry run" in desk.lines[-1]


def test_a_dry_run_without_credentials_says_so_and_goes_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One can look at the plan before there is an account."""
    site = desk.site(is_dry=True)
    monkeypatch.setattr(site.aws, "look", no_credentials)
    create(site)
    assert "credentials: none that AWS takes" in desk.said
    assert "$ eksctl create cluster" in desk.said


def test_a_failed_check_keeps_anything_from_being_made(desk: Desk) -> None:
    """An instance type with too few GPUs is seen before the first change."""
    desk.write(workers=[{"name": "gpu", "instance_type": "g5.xlarge", "count": 1, "gpus": 4}])
    with pytest.raises(ProvisionError, match="Nothing has been made or changed"):
        desk.create()
    assert "FAIL  workers[0].gpus: 4 asked for, g5.xlarge has 1 of NVIDIA" in desk.said
    assert desk.cloud.changes == []


def test_a_group_added_to_the_file_is_added_to_the_cluster(desk: Desk) -> None:
    """Creation is also how a cluster grows; a group that is no longer in the file is named and kept."""
    desk.create()
    groups = [
        {"name": "spot", "instance_type": "g5.xlarge", "count": 3, "spot": True, "gpus": 1},
        {"name": "late", "instance_type": "g5.xlarge", "count": 1, "gpus": 1},
    ]
    desk.write(workers=groups)
    desk.create()
    groups_now = desk.shape()["groups"]
    assert {name: group.desired for name, group in groups_now.items()} == {
        "control": 1,
        "spot": 3,
        "late": 1,
        "firm": 1,
    }
    assert desk.cloud.kube.releases["cerebro"]["values"]["worker"]["replicas"] == 4
    assert "Node group firm is not in the file" in desk.said


def test_somebody_elses_cluster_of_that_name_is_left_alone(desk: Desk) -> None:
    """Neither completed nor deleted."""
    ec2 = desk.cloud.client("ec2")
    subnets = [subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"][:2]]
    desk.cloud.client("eks").create_cluster(
        name="demo",
        version="1.34",
        roleArn="arn:aws:iam::123456789012:role/eks",
        resourcesVpcConfig={"subnetIds": subnets},
    )
    with pytest.raises(ProvisionError):
        desk.create()
    assert "was not made by `cerebro cluster`" in desk.said
    with pytest.raises(ProvisionError, match="was not made by `cerebro cluster`"):
        desk.delete()
    assert desk.cloud.changes == []


def test_other_buckets_change_the_role(desk: Desk) -> None:
    """The stack is updated; the file system in it stays."""
    desk.create()
    iam = desk.cloud.client("iam")
    (role,) = [role["RoleName"] for role in iam.list_roles()["Roles"]]
    policy = iam.get_role_policy(RoleName=role, PolicyName="read-buckets")["PolicyDocument"]
    assert "'Resource': ['arn:aws:s3:::pictures/train*']" in str(policy)
    before = desk.site().observe()
    desk.write(s3=["pictures/train", "sounds"])
    desk.create()
    stacks = desk.cloud.client("cloudformation").describe_stacks(StackName="cerebro-demo")["Stacks"]
    parameters = {each["ParameterKey"]: each["ParameterValue"] for each in stacks[0]["Parameters"]}
    assert "arn:aws:s3:::sounds/*" in parameters["Read"]
    assert desk.site().observe().file_system == before.file_system
    desk.write(s3=[])
    desk.create()
    assert desk.cloud.identities == set()


def test_a_stack_that_was_rolled_back_is_made_again(
    desk: Desk, whole: tuple[dict[str, Any], list[str]]
) -> None:
    """CloudFormation updates no such stack; nothing was ever stored in it."""
    desk.cloud.identities = {"cerebro-worker"}  # somebody else's, in the way
    with pytest.raises(ProvisionError, match="step `file system and roles` failed"):
        desk.create()
    assert desk.cloud.stacks()["cerebro-demo"] == "ROLLBACK_COMPLETE"
    assert "stack            cerebro-demo: ROLLBACK_COMPLETE" in "\n".join(status_lines(desk.site()))
    desk.cloud.identities = set()
    desk.create()
    assert desk.shape() == whole[0]


def test_a_control_plane_deleted_by_hand_is_made_again_around_the_data(desk: Desk) -> None:
    """The file system lets go of the network, which can then be made anew, and is mounted there."""
    desk.create()
    before, system = desk.shape(), desk.site().observe().file_system
    desk.cloud.drop_cluster("demo")
    desk.create()
    assert desk.site().observe().file_system == system
    after = desk.shape()
    assert (after["mounted"], after["identities"]) == (before["mounted"], before["identities"])


def test_a_stack_without_its_file_system_is_not_taken_for_an_empty_one(desk: Desk) -> None:
    """Perhaps only its tag is lost: nothing is removed or made that could hide data."""
    desk.create()
    efs = desk.cloud.client("efs")
    (system,) = efs.describe_file_systems()["FileSystems"]
    efs.untag_resource(ResourceId=system["FileSystemId"], TagKeys=["cerebro/cluster"])
    with pytest.raises(ProvisionError, match="stack cerebro-demo is there, its file system is not"):
        desk.create()
    assert len(efs.describe_file_systems()["FileSystems"]) == 1


def test_two_commands_at_once_are_refused(desk: Desk) -> None:
    """The second says who is at work."""
    site = desk.site()
    with site.alone(), pytest.raises(ProvisionError, match="is at work on demo"), desk.site().alone():
        pass
