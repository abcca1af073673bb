"""A cluster that an earlier version made: its file system and its roles are in other stacks."""

from __future__ import annotations

import pytest

from cerebro.cloud.actions import pause, resume, status_lines
from cerebro.errors import ProvisionError
from tests.cloud.conftest import Terminal
from tests.cloud.test_deleting import assert_empty

STORAGE = "cerebro-demo-storage"


@pytest.fixture
def earlier(terminal: Terminal) -> Terminal:
    """Two stacks for the file system, and a role of eksctl's for each service account."""
    terminal.cloud.fails_at_first = {"aws cloudformation deploy"}
    with pytest.raises(ProvisionError, match="step `file system and roles` failed"):
        terminal.create()
    tags = {"cerebro/cluster": "demo"}
    system = {"FileSystemTags": [{"Key": "cerebro/cluster", "Value": "demo"}]}
    terminal.cloud.make_stack(
        STORAGE, "", tags, {"FileSystem": {"Type": "AWS::EFS::FileSystem", "Properties": system}}
    )
    outputs = terminal.cloud.client("cloudformation").list_exports()["Exports"]
    exported = {each["Name"].rpartition("::")[2]: each["Value"] for each in outputs}
    subnet, group = exported["SubnetsPrivate"].split(",")[0], exported["ClusterSecurityGroupId"]
    mount = {
        "FileSystemId": terminal.site().observe().file_system,
        "SubnetId": subnet,
        "SecurityGroups": [group],
    }
    terminal.cloud.make_stack(
        "cerebro-demo-mounts", "", tags, {"Mount1": {"Type": "AWS::EFS::MountTarget", "Properties": mount}}
    )
    for account in ("cerebro-worker", "cerebro-controller", "cerebro-notebook"):
        terminal.cloud.make_stack(f"eksctl-demo-podidentityrole-cerebro-{account}", "demo", {})
        terminal.cloud.identities.add(account)
    terminal.create()
    return terminal


def test_it_is_as_in_the_file_and_nothing_is_moved(earlier: Terminal) -> None:
    """Creation completes it around what there is; status shows it all."""
    assert "cerebro-demo" not in earlier.cloud.stacks()
    assert len(earlier.cloud.client("efs").describe_file_systems()["FileSystems"]) == 1
    before = len(earlier.cloud.changes)
    earlier.create()
    assert earlier.cloud.changes[before:] == []
    shown = "\n".join(status_lines(earlier.site()))
    assert "file system x 1" in shown
    assert "release          cerebro: deployed" in shown


def test_it_is_paused_and_resumed(earlier: Terminal) -> None:
    """Nothing but its nodes goes."""
    before = earlier.shape()
    pause(earlier.site())
    assert earlier.site().observe().is_paused
    resume(earlier.site())
    assert earlier.shape() == before


@pytest.mark.slow
def test_it_is_deleted_whole(earlier: Terminal) -> None:
    """The mount targets' stack before the file system's, both before the network."""
    earlier.delete()
    deletions = [call[4] for call in earlier.cloud.calls if call[1:3] == ["cloudformation", "delete-stack"]]
    assert deletions[:2] == ["cerebro-demo-mounts", STORAGE]
    assert_empty(earlier)
    assert earlier.cloud.identities == set()


def test_what_only_it_could_mount_is_not_lost(earlier: Terminal) -> None:
    """Its control plane has gone: the data are left alone, and the user is told."""
    earlier.cloud.drop_cluster("demo")
    with pytest.raises(ProvisionError, match="cannot mount it in a new network"):
        earlier.create()
    assert STORAGE in earlier.cloud.stacks()
