"""Deletion removes everything that costs money and only the cluster's own resources."""

from __future__ import annotations

from contextlib import suppress

import pytest

from cerebro.cloud.world import World
from cerebro.errors import ProvisionError
from tests.cloud.cloud import Fault
from tests.cloud.conftest import EKSCTL_STOPS, Terminal


def assert_empty(terminal: Terminal) -> None:
    """Check that no resource has the cluster's name."""
    assert terminal.site().observe(with_resources=True) == World(name="demo")
    assert terminal.cloud.paid_for() == []


def test_a_complete_cluster_is_deleted(terminal: Terminal) -> None:
    """Resources are removed, reported and verified."""
    terminal.create()
    terminal.delete()
    assert "Checked again: no billed resource of demo" in terminal.said
    assert_empty(terminal)


def half_made(terminal: Terminal, part: int) -> None:
    """A cluster with only the first parts of eksctl."""
    terminal.cloud.eksctl_stops_after = part
    with pytest.raises(ProvisionError):
        terminal.create()


@pytest.mark.parametrize("part", EKSCTL_STOPS)
def test_a_partly_created_cluster_is_deleted(terminal: Terminal, part: int) -> None:
    """For each part."""
    half_made(terminal, part)
    terminal.delete()
    assert_empty(terminal)


@pytest.mark.slow
@pytest.mark.parametrize("at", range(8))
def test_a_creation_that_failed_at_any_change_is_deleted(terminal: Terminal, at: int) -> None:
    """For each change, including the one that failed."""
    terminal.cloud.fault = Fault(at=at, after_effect=True)
    with pytest.raises(ProvisionError):
        terminal.create()
    terminal.delete()
    assert_empty(terminal)


@pytest.mark.slow
@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
def test_a_repeatedly_failing_deletion_completes(terminal: Terminal, after_effect: bool) -> None:
    """The k-th command fails at its k-th change; it names the remaining resources, and in the end none remain."""
    terminal.create()
    for step in range(30):
        terminal.cloud.fault = Fault(at=len(terminal.cloud.changes) + step % 4, after_effect=after_effect)
        with suppress(ProvisionError):
            terminal.delete()
        if terminal.lines[-1].startswith("Nothing of demo"):
            break
    terminal.cloud.fault = None
    assert_empty(terminal)


@pytest.mark.slow
def test_load_balancers_are_deleted_before_the_network(terminal: Terminal) -> None:
    """Inside the cluster, or on AWS if nothing in the cluster can remove them."""
    terminal.create()
    terminal.cloud.client("elb").create_load_balancer(
        LoadBalancerName="a0b1",
        Listeners=[{"Protocol": "tcp", "LoadBalancerPort": 80, "InstancePort": 30080}],
        AvailabilityZones=["us-east-1a"],
        Tags=[{"Key": "kubernetes.io/cluster/demo", "Value": "owned"}],
    )
    terminal.cloud.kube.balancers = ["a0b1"]
    terminal.cloud.kube.drivers_are_dead = True
    cluster = terminal.cloud.client("ec2").describe_security_groups(
        Filters=[{"Name": "group-name", "Values": ["eks-demo"]}]
    )["SecurityGroups"][0]
    terminal.cloud.client("ec2").create_security_group(
        GroupName="k8s-elb-a0b1", VpcId=cluster["VpcId"], Description="of a load balancer",
        TagSpecifications=[{"ResourceType": "security-group", "Tags": [
            {"Key": "kubernetes.io/cluster/demo", "Value": "owned"}
        ]}],
    )  # fmt: skip
    terminal.delete()
    order = [line for line in terminal.lines if line.startswith("Removing")]
    assert order.index("Removing: load balancers") < order.index("Removing: control plane")
    assert order.index("Removing: security groups of load balancers") < order.index("Removing: control plane")
    assert_empty(terminal)


def test_nothing_is_deleted_without_a_confirmation(terminal: Terminal) -> None:
    """The question lists the resources, including the data."""
    half_made(terminal, 1)
    before, requests = terminal.shape(), []

    def no(what: str) -> bool:
        requests.append(what)
        return False

    terminal.delete(confirm=no)
    assert terminal.lines == ["Nothing was removed."]
    assert "1 x EKS cluster" in requests[0]
    assert "checkpoints" in requests[0]
    assert terminal.shape() == before


def test_remaining_resources_are_named_with_the_delete_command(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk attached to a machine outside the cluster remains, and the message has the command to delete it."""
    terminal.create()
    terminal.cloud.kube.drivers_are_dead = True
    volume = terminal.cloud.client("ec2").describe_volumes(Filters=[{"Name": "tag:of", "Values": ["claim"]}])[
        "Volumes"
    ][0]
    instance = terminal.cloud.client("ec2").run_instances(
        ImageId="ami-12c6146b", MinCount=1, MaxCount=1, Placement={"AvailabilityZone": "us-east-1a"}
    )["Instances"][0]
    terminal.cloud.client("ec2").attach_volume(
        VolumeId=volume["VolumeId"], InstanceId=instance["InstanceId"], Device="/dev/sdf"
    )
    with pytest.raises(ProvisionError) as failure:
        terminal.delete()
    assert f"aws ec2 delete-volume --volume-id {volume['VolumeId']} --region us-east-1" in str(failure.value)
    assert "Checked again" not in terminal.said
