"""Fixtures: a cluster file, an account, and a site for both."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

if importlib.util.find_spec("moto") is None:
    assert not os.environ.get("CI"), "moto is missing: pip install 'moto[server]'"
    pytest.skip("needs moto: pip install 'moto[server]'", allow_module_level=True)

import moto.core.responses
from botocore.loaders import create_loader
from moto import mock_aws
from moto.core.utils import method_names_from_class

from cerebro.cloud.actions import create, delete
from cerebro.cloud.aws import AwsError
from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.site import Site, open_site
from tests.cloud.cloud import Cloud
from tests.cloud.standins import standins

FILE: dict[str, Any] = {
    "name": "demo",
    "region": "us-east-1",
    "kubernetes": "1.34",
    "controller": {"instance_type": "m5.xlarge"},
    "workers": [
        {"name": "spot", "instance_type": "g5.xlarge", "count": 2, "spot": True, "gpus": 1},
        {"name": "firm", "instance_type": "g4dn.xlarge", "count": 1, "gpus": 1},
    ],
    "images": {"registry": "123456789012.dkr.ecr.us-east-1.amazonaws.com"},
    "s3": ["pictures/train"],
    "install": {"monitoring": True, "chart": {"path": "chart"}},
    "tags": {"team": "vision"},
}


EKSCTL_STOPS = [pytest.param(part, marks=[] if part == 4 else [pytest.mark.slow]) for part in range(7)]
"""Values of `Cloud.eksctl_stops_after`; one is in the fast tests."""


@pytest.fixture(scope="session", autouse=True)
def shared_descriptions() -> Iterator[None]:
    """Load botocore's service descriptions, several MB, once for all sessions, and cache moto's method lists."""
    loader = create_loader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", lambda *_: loader)
        patch.setattr(
            moto.core.responses, "method_names_from_class", functools.cache(method_names_from_class)
        )
        yield


@pytest.fixture
def file() -> ClusterFile:
    """Return a file with all options."""
    return ClusterFile.model_validate(FILE)


def no_credentials(*_: Any, **__: Any) -> Any:
    """Replace `Aws.look` for a user without credentials."""
    raise AwsError("sts", "", "Unable to locate credentials")


@dataclass(kw_only=True)
class Terminal:
    """A user at a terminal: a cluster file, executables on PATH, an account."""

    cloud: Cloud
    folder: Path
    lines: list[str] = field(default_factory=list)
    """Printed lines."""

    @property
    def path(self) -> Path:
        """Return the path of the cluster file."""
        return self.folder / "cluster.yaml"

    @property
    def chart(self) -> Path:
        """Return the path of the platform's chart."""
        return self.folder / "chart"

    @property
    def said(self) -> str:
        """Return the output as one text."""
        return "\n".join(self.lines)

    def write(self, **changes: Any) -> None:
        """Write the cluster file, with changes."""
        self.path.write_text(yaml.safe_dump({**FILE, **changes}))

    def site(self, *, is_dry: bool = False) -> Site:
        """Open the site again, as a new process does."""
        return open_site(
            self.path,
            self.folder / "home",
            is_dry=is_dry,
            show=self.lines.append,
            environment={"PATH": f"{self.folder / 'bin'}"},
            session=self.cloud.session(),
        )

    def create(self, *, is_dry: bool = False) -> None:
        """Run `cerebro cluster create`."""
        self.lines.clear()
        create(self.site(is_dry=is_dry))

    def delete(self, *, is_dry: bool = False, confirm: Callable[[str], bool] = lambda _: True) -> None:
        """Run `cerebro cluster delete`."""
        self.lines.clear()
        delete(self.site(is_dry=is_dry), confirm)

    def shape(self) -> dict[str, Any]:
        """Return the world without ids that differ between creations."""
        world = self.site().observe(with_resources=True)
        efs, system = self.cloud.client("efs"), world.file_system
        targets = efs.describe_mount_targets(FileSystemId=system)["MountTargets"] if system else []
        return {
            "cluster": world.cluster and (world.cluster.status, world.cluster.version, world.cluster.tags),
            "stacks": set(world.stacks),
            "mark": world.mark,
            "groups": dict(world.groups),
            "addons": dict(world.addons),
            "identities": set(self.cloud.identities),
            "mounted": sorted(target["AvailabilityZoneName"] for target in targets),
            "classes": sorted(self.cloud.kube.classes),
            "releases": {
                name: (release["status"], release["description"])
                for name, release in self.cloud.kube.releases.items()
            },
            "resources": sorted(resource.kind for resource in world.resources),
            "claims": len(self.cloud.kube.claims),
        }


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """An empty account and a cluster file."""
    with new_terminal(tmp_path, monkeypatch) as terminal:
        yield terminal


def new_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Open a context with an empty account and a cluster file in an empty folder."""
    from contextlib import contextmanager

    @contextmanager
    def terminals() -> Iterator[Terminal]:
        for name in list(os.environ):
            if name.startswith("AWS_"):
                monkeypatch.delenv(name)
        (folder / "bin").mkdir(parents=True)
        (folder / "chart").mkdir()
        (folder / "chart" / "Chart.yaml").write_text("name: cerebro\n")
        monkeypatch.setenv(
            "MOTO_EC2_LOAD_DEFAULT_AMIS", "false"
        )  # otherwise moto lists a thousand public snapshots
        with mock_aws():
            cloud = Cloud()
            monkeypatch.setattr("botocore.waiter.time", SimpleNamespace(sleep=cloud.wait))
            with standins(folder / "bin", cloud.execute):
                terminal = Terminal(cloud=cloud, folder=folder)
                terminal.write()
                yield terminal

    return terminals()


@pytest.fixture(autouse=True, scope="session")
def run_commands(commands: None) -> None:
    """Mark all tests here, since the stand-ins for aws, eksctl, helm and kubectl are programs."""
