"""One cluster and the means to change it: the file, the hands (AWS, executables), a folder for what is generated.

The only place with a clock and a process's environment.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from cerebro.cloud import observing
from cerebro.cloud.aws import Aws, Session, open_session
from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.manifests import configuration
from cerebro.cloud.names import cluster_stack
from cerebro.cloud.reading import read
from cerebro.cloud.runner import Journal, Runner
from cerebro.cloud.world import Condition, World, stack_condition
from cerebro.errors import ProvisionError

_CHART = Path("deploy") / "helm" / "cerebro"


@dataclass(kw_only=True)
class Site:
    """`zones` is set once it is known where the nodes go."""

    file: ClusterFile
    aws: Aws
    runner: Runner
    folder: Path
    """Generated files, the kubeconfig and the log; it can be lost without harm."""
    chart: Path
    """The platform's."""
    chart_problem: str | None
    """Why it cannot be used, if so."""
    show: Callable[[str], None]
    is_dry: bool
    zones: Sequence[str] = ()

    @property
    def kubeconfig(self) -> Path:
        """The cluster's own: the user's is left alone."""
        return self.folder / "kubeconfig"

    @property
    def place(self) -> tuple[str, str, str, str]:
        """How eksctl and the like are told which cluster is meant."""
        return ("--cluster", self.file.name, "--region", self.file.region)

    def observe(self, *, with_resources: bool = False) -> World:
        """What there is now."""
        return observing.observe(
            self.file.name, self.aws, self.runner, self.kubeconfig, with_resources=with_resources
        )

    def settled(self, world: World, *, with_groups: bool = True) -> World:
        """The world once AWS has ended what is under way in it; without groups, of the control plane alone.

        Raises:
            ProvisionError: something has not ended in time.
        """
        base, name = cluster_stack(world.name), world.name
        stacks = [stack for stack in world.stacks if with_groups or stack == base]
        changing = [each for each in stacks if stack_condition(world.stacks[each]) is Condition.CHANGING]
        for stack in changing:
            self.aws.wait("cloudformation", "StackSettled", StackName=stack)
        is_cluster_changing = world.cluster is not None and world.cluster_condition() is Condition.CHANGING
        if is_cluster_changing:
            self.aws.wait("eks", "ClusterSettled", name=name)
        moving = [each for each in world.groups if world.group_condition(each) is Condition.CHANGING]
        for group in moving if with_groups else ():
            self.aws.wait("eks", "NodegroupSettled", clusterName=name, nodegroupName=group)
        return self.observe() if changing or is_cluster_changing or moving else world

    def write(self, name: str, content: Any) -> Path:
        """A generated file (YAML; several documents if `content` is a list); in a dry run it is only shown."""
        documents = content if isinstance(content, list) else [content]
        text = yaml.safe_dump_all(documents, sort_keys=False, width=100)
        path = self.folder / name
        if self.is_dry:
            for line in (f"# file {path}", *(f"    {line}" for line in text.splitlines())):
                self.show(line)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return path

    def write_configuration(self, name: str, **parts: Sequence[str]) -> str:
        """eksctl's configuration, with all or some (`addons`, `identities`) of its parts; returns its path."""
        return str(self.write(name, configuration(self.file, self.zones, **parts)))

    def eksctl(self, *arguments: str) -> None:
        """Change something by eksctl."""
        self.runner.change("eksctl", *arguments)

    def kubectl(self, *arguments: str) -> None:
        """Change something in the cluster."""
        self.runner.change("kubectl", "--kubeconfig", str(self.kubeconfig), *arguments)

    def helm(self, *arguments: str) -> None:
        """Change a release."""
        self.runner.change("helm", "--kubeconfig", str(self.kubeconfig), *arguments)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps a second command for the same cluster out while one is at work on this machine.

        Raises:
            ProvisionError: one is.
        """
        if self.is_dry:
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as taken:
                raise ProvisionError(
                    f"another `cerebro cluster` command is at work on {self.file.name}: wait for it, its log is "
                    f"{self.folder / 'cluster.log'}"
                ) from taken
            yield


@dataclass(frozen=True, kw_only=True)
class Step:
    """A part of a cluster that is made or removed; safe to take twice."""

    name: str
    """As messages call it."""
    is_needed: Callable[[World], bool]
    """Whether anything is left to do."""
    take: Callable[[Site, World], None]
    """Do it, and return when it is done; or raise ProvisionError, and go on from there when taken again."""
    comes_with_cluster: bool = False
    """Whether ``eksctl create cluster`` does it as well."""


def open_site(
    path: Path,
    home: Path,
    *,
    is_dry: bool,
    show: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    session: Session | None = None,
) -> Site:
    """The site of a cluster file.

    Args:
        path: of the cluster file.
        home: generated files and the log go to ``clusters/REGION.NAME`` below it.
        is_dry: nothing is changed, on AWS or here.
        show: takes each line for the user.
        environment: of the executables; this process's if not given.
        session: credentials; this process's if not given.

    Raises:
        ClusterFileError: the file has mistakes.
    """
    file = read(path)
    folder = home / "clusters" / f"{file.region}.{file.name}"
    journal = Journal(None if is_dry else folder / "cluster.log", lambda: datetime.now(UTC))
    given = dict(os.environ if environment is None else environment)
    chart, problem = _chart(file, path)
    return Site(
        file=file,
        aws=Aws(
            session or open_session(file.region),
            region=file.region,
            journal=journal,
            show=show,
            is_dry=is_dry,
        ),
        runner=Runner(environment=given, journal=journal, show=show, is_dry=is_dry),
        folder=folder,
        chart=chart,
        chart_problem=problem,
        show=show,
        is_dry=is_dry,
    )


def _chart(file: ClusterFile, path: Path) -> tuple[Path, str | None]:
    given = file.install.chart.path
    chart = Path(__file__).resolve().parents[2] / _CHART if given is None else path.parent / given
    if (chart / "Chart.yaml").is_file() or (chart.is_file() and chart.suffix == ".tgz"):
        return chart, None
    if given is not None:
        return chart, f"{chart} is no chart: neither a folder with Chart.yaml nor a .tgz archive"
    return chart, (
        f"there is no chart at {chart}, because Cerebro does not run from a checkout: clone the repository and set "
        f"install.chart.path to its {_CHART}"
    )
