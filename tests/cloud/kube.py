"""A cluster's state as kubectl and helm see it: classes, releases, claims and load balancers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from tests.cloud.cloud import Cloud

Answer = tuple[int, str]
VERSIONS = {
    "kubectl": "Client Version: v1.34.1",
    "helm": "v3.18.4+gd80839c",
}
_LOOKS = {
    "eksctl": ("version",),
    "kubectl": ("version", "get"),
    "helm": ("version", "list", "history"),
    "aws": ("--version",),
}


class FakeKube:
    """The objects of a cluster, which end with the cluster."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self.clear()

    def clear(self) -> None:
        """Reset to an empty cluster. Disks on EC2 stay, as on AWS."""
        self.classes: dict[str, dict[str, Any]] = {}
        self.releases: dict[str, dict[str, Any]] = {}
        self.claims: list[str] = []
        self.balancers: list[str] = []
        self.drivers_are_dead = False

    @staticmethod
    def is_read_only(name: str, arguments: Sequence[str]) -> bool:
        """Return True if a call of an executable only reads."""
        return words(arguments)[0] in _LOOKS[name]

    def write_kubeconfig(self, path: str, cluster: str) -> None:
        """Write a kubeconfig as eksctl and aws do."""
        description = self._cloud.client("eks").describe_cluster(name=cluster)["cluster"]
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(
            yaml.safe_dump({"clusters": [{"cluster": {"server": description["endpoint"]}}]})
        )

    # --- kubectl ---

    def kubectl(self, arguments: Sequence[str]) -> Answer:
        """Answer a call of kubectl."""
        match words(arguments):
            case ["version", *_]:
                return 0, VERSIONS["kubectl"]
            case ["get", "storageclasses", *_]:
                return 0, json.dumps({"items": list(self.classes.values())})
            case ["replace", *_]:
                assert "--force" in arguments, "parameters of a class cannot be changed"
                documents = yaml.safe_load_all(Path(_value(arguments, "-f")).read_text())
                self.classes |= {document["metadata"]["name"]: document for document in documents}
            case ["delete", "namespace", *_]:
                self._empty()
            case ["wait", *_]:
                pass
            case _:
                raise AssertionError(f"kubectl {arguments}")
        return 0, "done"

    def _empty(self) -> None:
        self.claims.clear()
        self.releases.clear()
        if not self.drivers_are_dead:
            ec2 = self._cloud.client("ec2")
            for volume in ec2.describe_volumes(Filters=[{"Name": "tag:of", "Values": ["claim"]}])["Volumes"]:
                ec2.delete_volume(VolumeId=volume["VolumeId"])
            for point in self._cloud.client("efs").describe_access_points()["AccessPoints"]:
                self._cloud.client("efs").delete_access_point(AccessPointId=point["AccessPointId"])
            for name in self.balancers:
                self._cloud.client("elb").delete_load_balancer(LoadBalancerName=name)
        self.balancers.clear()

    # --- helm ---

    def helm(self, arguments: Sequence[str]) -> Answer:
        """Answer a call of helm."""
        match words(arguments):
            case ["version", *_]:
                return 0, VERSIONS["helm"]
            case ["list", *_]:
                listed = [
                    {"name": name, **_shown(release)} for name, release in sorted(self.releases.items())
                ]
                return 0, json.dumps(listed)
            case ["history", name] if name not in self.releases:
                return 1, "Error: release: not found"
            case ["history", name]:
                return 0, json.dumps([{"revision": 1, **_shown(self.releases[name])}])
            case ["upgrade", name, chart]:
                return self._upgrade(name, chart, arguments)
            case ["uninstall", name]:
                return (
                    (0, "uninstalled") if self.releases.pop(name, None) else (1, "Error: release: not found")
                )
            case ["rollback", name]:
                self.releases[name] |= {"status": "deployed", "description": "Rollback to 1"}
                return 0, "Rollback was a success!"
            case _:
                raise AssertionError(f"helm {arguments}")

    def _upgrade(self, name: str, chart: str, arguments: Sequence[str]) -> Answer:
        there = self.releases.get(name)
        if there is not None and there["status"].startswith("pending"):
            return 1, "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress"
        values = yaml.safe_load(Path(_value(arguments, "--values")).read_text())
        self.releases[name] = {
            "namespace": _value(arguments, "--namespace"),
            "status": "deployed",
            "chart": chart,
            "description": _value(arguments, "--description"),
            "values": values,
        }
        if name == "cerebro" and not self.claims:
            self._claim(values)
        return 0, "STATUS: deployed"

    def _claim(self, values: dict[str, Any]) -> None:
        tag = self.classes[values["storage"]["podClassName"]]["parameters"]["tagSpecification_1"]
        key, _, value = tag.partition("=")
        (system,) = self._cloud.client("efs").describe_file_systems()["FileSystems"]
        assert (
            system["FileSystemId"]
            == self.classes[values["storage"]["className"]]["parameters"]["fileSystemId"]
        )
        for claim in ("checkpoints", "metrics", "code", "shared"):
            self.claims.append(claim)
            self._cloud.client("efs").create_access_point(
                ClientToken=claim, FileSystemId=system["FileSystemId"]
            )
        for index in range(values["worker"]["replicas"]):
            self.claims.append(f"shards-{index}")
            self._cloud.client("ec2").create_volume(
                AvailabilityZone="us-east-1a", Size=10, VolumeType="gp3",
                TagSpecifications=[
                    {
                        "ResourceType": "volume",
                        "Tags": [{"Key": key, "Value": value}, {"Key": "of", "Value": "claim"}],
                    }
                ],
            )  # fmt: skip


def _shown(release: dict[str, Any]) -> dict[str, Any]:
    return {key: release[key] for key in ("namespace", "status", "chart", "description")}


_WITH_VALUE = {
    "--kubeconfig", "-n", "--namespace", "-o", "-f", "--values", "--description", "--timeout", "--max", "--repo",
    "--version", "--name", "--region", "--cluster",
}  # fmt: skip


def words(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that are neither options nor values of options."""
    found, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in _WITH_VALUE:
            skip = True
        elif not argument.startswith("-") or argument == "--version":
            found.append(argument)
    return found or list(arguments)[:1]


def _value(arguments: Sequence[str], option: str) -> str:
    return arguments[list(arguments).index(option) + 1] if option in arguments else ""
