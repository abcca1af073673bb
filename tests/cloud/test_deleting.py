"""Deletion leaves nothing that costs money, after any beginning, and does not touch what is not the cluster's."""

from __future__ import annotations

from contextlib import suppress

import pytest

from cerebro.cloud.world import World
from cerebro.errors import ProvisionError
from tests.cloud.cloud import Fault
from tests.cloud.conftest import EKSCTL_STOPS, Desk


def assert_empty(desk: Desk) -> None:
    """Nothing bears the cluster's name any more."""
    assert desk.site().observe(with_resources=True) == World(name="demo")
    assert desk.cloud.paid_for() == []


def test_a_whole_cluster_goes(desk: Desk) -> None:
    """Everything is removed, said and looked for again."""
    desk.create()
    desk.delete()
    assert "Looked again: nothing of demo is left" in desk.said
    assert_empty(desk)


def half_made(desk: Desk, part: int) -> None:
    """A cluster of which eksctl made the first parts."""
    desk.cloud.eksctl_stops_after = part
    with pytest.raises(ProvisionError):
        desk.create()


@pytest.mark.parametrize("part", EKSCTL_STOPS)
def test_a_half_made_cluster_goes(desk: Desk, part: int) -> None:
    """Wherever eksctl stopped."""
    half_made(desk, part)
    desk.delete()
    assert_empty(desk)


@pytest.mark.slow
@pytest.mark.parametrize("at", range(8))
def test_a_creation_broken_anywhere_goes(desk: Desk, at: int) -> None:
    """Wherever creation stopped, the change it stopped at included."""
    desk.cloud.fault = Fault(at=at, after_effect=True)
    with pytest.raises(ProvisionError):
        desk.create()
    desk.delete()
    assert_empty(desk)


def test_nothing_is_nothing(desk: Desk) -> None:
    """A cluster that never was is no error."""
    desk.delete()
    assert desk.lines == ["Nothing of demo is left in us-east-1."]


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
def test_a_deletion_broken_again_and_again_comes_to_its_end(desk: Desk, after_effect: bool) -> None:
    """Each command's k-th change fails, for growing k; what is left is named each time, and goes in the end."""
    desk.create()
    for step in range(30):
        desk.cloud.fault = Fault(at=len(desk.cloud.changes) + step % 4, after_effect=after_effect)
        with suppress(ProvisionError):
            desk.delete()
        if desk.lines[-1].startswith("Nothing of demo"):
            break
    desk.cloud.fault = None
    assert_empty(desk)


def test_disks_of_dead_drivers_go(desk: Desk) -> None:
    """With no driver alive, as in a pause, the claims' disks stay behind; they are found by their tag."""
    desk.create()
    desk.cloud.kube.drivers_are_dead = True
    desk.delete()
    assert "Removing: volumes" in desk.lines
    assert_empty(desk)


@pytest.mark.slow
def test_load_balancers_go_before_the_network(desk: Desk) -> None:
    """Inside the cluster and, where nobody removes them there, on AWS."""
    desk.create()
    desk.cloud.client("elb").create_load_balancer(
        LoadBalancerName="a0b1",
        Listeners=[{"Protocol": "tcp", "LoadBalancerPort": 80, "InstancePort": 30080}],
        AvailabilityZones=["us-east-1a"],
        Tags=[{"Key": "kubernetes.io/cluster/demo", "Value": "owned"}],
    )
    desk.cloud.kube.balancers = ["a0b1"]
    desk.cloud.kube.drivers_are_dead = True
    cluster = desk.cloud.client("ec2").describe_security_groups(
        Filters=[{"Name": "group-name", "Values": ["eks-demo"]}]
    )["SecurityGroups"][0]
    desk.cloud.client("ec2").create_security_group(
        GroupName="k8s-elb-a0b1", VpcId=cluster["VpcId"], Description="of a load balancer",
        TagSpecifications=[{"ResourceType": "security-group", "Tags": [
            {"Key": "kubernetes.io/cluster/demo", "Value": "owned"}
        ]}],
    )  # fmt: skip
    desk.delete()
    order = [line for line in desk.lines if line.startswith("Removing")]
    assert order.index("Removing: load balancers") < order.index("Removing: control plane")
    assert order.index("Removing: security groups of load balancers") < order.index("Removing: control plane")
    assert_empty(desk)


def test_logs_go(desk: Desk) -> None:
    """CloudWatch would keep them for ever."""
    desk.cloud.client("logs").create_log_group(logGroupName="/aws/eks/demo/cluster")
    desk.cloud.client("logs").create_log_group(logGroupName="/aws/eks/demo-two/cluster")
    desk.delete()
    assert_empty(desk)
    groups = desk.cloud.client("logs").describe_log_groups()["logGroups"]
    assert [group["logGroupName"] for group in groups] == ["/aws/eks/demo-two/cluster"]


def test_a_cluster_whose_name_begins_alike_is_left_alone(desk: Desk) -> None:
    """Stacks of demo-two begin with `eksctl-demo-` too."""
    desk.cloud.make_stack("eksctl-demo-two-cluster", "demo-two", {})
    half_made(desk, 0)
    desk.delete()
    assert_empty(desk)
    assert list(desk.cloud.stacks()) == ["eksctl-demo-two-cluster"]


@pytest.mark.slow
def test_stacks_that_eksctl_gave_up_on_are_deleted(desk: Desk) -> None:
    """eksctl leaves stacks in DELETE_FAILED; they are deleted again, by themselves."""
    desk.create()
    desk.cloud.set_stack("eksctl-demo-nodegroup-spot", "DELETE_FAILED")
    desk.cloud.set_stack("eksctl-demo-cluster", "DELETE_FAILED")
    desk.delete()
    assert_empty(desk)


def test_nothing_goes_unless_the_name_is_typed(desk: Desk) -> None:
    """The question says what goes, and that the data go with it."""
    half_made(desk, 1)
    before, asked = desk.shape(), []

    def no(what: str) -> bool:
        asked.append(what)
        return False

    desk.delete(confirm=no)
    assert desk.lines == ["Nothing has been removed."]
    assert "1 x EKS cluster" in asked[0]
    assert "checkpoints" in asked[0]
    assert desk.shape() == before


def test_what_is_left_is_named_with_the_command_that_removes_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that a machine outside the cluster holds cannot go; the user is told how to remove it."""
    desk.create()
    desk.cloud.kube.drivers_are_dead = True
    volume = desk.cloud.client("ec2").describe_volumes(Filters=[{"Name": "tag:of", "Values": ["claim"]}])[
        "Volumes"
    ][0]
    instance = desk.cloud.client("ec2").run_instances(
        ImageId="ami-12c6146b", MinCount=1, MaxCount=1, Placement={"AvailabilityZone": "us-east-1a"}
    )["Instances"][0]
    desk.cloud.client("ec2").attach_volume(
        VolumeId=volume["VolumeId"], InstanceId=instance["InstanceId"], Device="/dev/sdf"
    )
    with pytest.raises(ProvisionError) as failure:
        desk.delete()
    assert f"aws ec2 delete-volume --volume-id {volume['VolumeId']} --region us-east-1" in str(failure.value)
    assert "Looked again" not in desk.said
