"""What a step works with: the file, the hands (AWS, executables), a folder for what is generated, and patience."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cerebro.cloud import observing
from cerebro.cloud.aws import Aws
from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.eksctl_config import configuration
from cerebro.cloud.runner import Runner
from cerebro.cloud.world import World
from cerebro.errors import ProvisionError


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How AWS is waited for; tests give a clock of their own."""

    interval_s: float = 15.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


@dataclass(kw_only=True)
class Site:
    """One cluster, and the means to change it. `zones` is set once it is known where the nodes go."""

    file: ClusterFile
    aws: Aws
    runner: Runner
    folder: Path
    """Generated files, the kubeconfig and the log; it can be lost without harm."""
    show: Callable[[str], None]
    is_dry: bool
    patience: Patience = field(default_factory=Patience)
    zones: Sequence[str] = ()
    imagined: World | None = None
    """A dry run's world: what the steps before would have left."""

    @property
    def kubeconfig(self) -> Path:
        """The cluster's own: the user's is left alone."""
        return self.folder / "kubeconfig"

    @property
    def place(self) -> tuple[str, str, str, str]:
        """How eksctl and the like are told which cluster is meant."""
        return ("--cluster", self.file.name, "--region", self.file.region)

    def observe(self, *, with_resources: bool = False) -> World:
        """What there is now; in a dry run, what there would be."""
        if self.imagined is not None:
            return self.imagined
        return observing.observe(
            self.file.name, self.aws, self.runner, self.kubeconfig, with_resources=with_resources
        )

    def wait(self, what: str, is_over: Callable[[World], bool], *, timeout_s: float) -> World:
        """Look again and again until `is_over`; a dry run does not wait.

        Raises:
            ProvisionError: it was not over in time.
        """
        world = self.observe()
        if self.is_dry or is_over(world):
            return world
        self.show(f"  waiting for {what} (at most {timeout_s / 60:.0f} min) ...")
        ends = self.patience.clock() + timeout_s
        while self.patience.clock() < ends:
            self.patience.sleep(self.patience.interval_s)
            world = self.observe()
            if is_over(world):
                return world
        raise ProvisionError(
            f"{what}: not within {timeout_s / 60:.0f} minutes; give the same command again to wait on"
        )

    def write(self, name: str, content: Any) -> Path:
        """A generated file (YAML; several documents if `content` is a list); in a dry run it is only shown."""
        documents = content if isinstance(content, list) else [content]
        text = yaml.safe_dump_all(documents, sort_keys=False, width=100)
        path = self.folder / name
        if self.is_dry:
            self.show(f"# file {path}")
            for line in text.splitlines():
                self.show(f"    {line}")
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return path

    def write_configuration(self, name: str, **parts: Sequence[str]) -> Path:
        """eksctl's configuration, with all or some (`addons`, `identities`) of its parts."""
        return self.write(name, configuration(self.file, self.zones, **parts))

    def kubectl(self, *arguments: str) -> None:
        """Change something in the cluster."""
        self.runner.change("kubectl", "--kubeconfig", str(self.kubeconfig), *arguments)

    def helm(self, *arguments: str) -> None:
        """Change a release."""
        self.runner.change("helm", "--kubeconfig", str(self.kubeconfig), *arguments)
