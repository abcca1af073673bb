"""One cluster and the means to change it: the file, AWS, executables, a folder for what is generated.

The only place with a process's environment.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cerebro.cloud.aws import Aws, Session, open_session
from cerebro.cloud.clusterfile import ClusterFile, read
from cerebro.cloud.runner import Runner
from cerebro.cloud.world import World, observe
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
    chart_problem: str
    """Why it cannot be used; empty if it can."""
    show: Callable[[str], None]
    zones: Sequence[str] = ()
    is_offline: bool = False
    """Set by a dry run without credentials: nothing is taken to exist."""

    @property
    def is_dry(self) -> bool:
        """Whether changes are only shown."""
        return self.runner.is_dry

    @property
    def kubeconfig(self) -> Path:
        """The cluster's own: the user's is left alone."""
        return self.folder / "kubeconfig"

    def observe(self, *, with_resources: bool = False) -> World:
        """What there is now."""
        if self.is_offline:
            return World(name=self.file.name)
        return observe(self.aws, self.file.name, with_resources=with_resources)

    def settled(self, world: World) -> World:
        """The world once AWS has ended what is under way in it.

        Raises:
            ProvisionError: something has not ended in time.
        """
        groups = [name for name, group in world.groups.items() if group.status == "UPDATING"]
        for stack in world.moving_stacks:
            self.wait_for_stack(world, stack)
        for group in groups:
            self.wait("eks", "nodegroup_active", clusterName=world.name, nodegroupName=group)
        return self.observe() if world.moving_stacks or groups else world

    def wait_for_stack(self, world: World, stack: str) -> None:
        """Wait until CloudFormation has ended what it is doing with a stack, if it does anything."""
        verb, ends = world.stacks.get(stack, "").partition("_")[0], {"DELETE": "delete", "UPDATE": "update"}
        if stack in world.moving_stacks:
            self.wait("cloudformation", f"stack_{ends.get(verb, 'create')}_complete", StackName=stack)

    def wait(self, service: str, waiter: str, **arguments: str) -> None:
        """Wait by one of boto3's waiters; a dry run does not.

        Raises:
            ProvisionError: it has not ended in time, or AWS cannot be asked.
        """
        if not self.is_dry:
            self.show(f"  waiting for {' '.join(arguments.values())} ...")
            self.aws.wait(service, waiter, **arguments)

    def write(self, name: str, content: Any) -> str:
        """A generated file (YAML; several documents if `content` is a list) and its path; a dry run only shows it."""
        documents = content if isinstance(content, list) else [content]
        text = yaml.safe_dump_all(documents, sort_keys=False, width=100)
        path = self.folder / name
        if self.is_dry:
            for line in (f"# file {path}", *(f"    {line}" for line in text.splitlines())):
                self.show(line)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return str(path)

    def change(self, tool: str, *arguments: str) -> None:
        """Change something by eksctl, or by aws (in the file's region), kubectl or helm (in the cluster)."""
        inside, region = ("--kubeconfig", str(self.kubeconfig)), ("--region", self.file.region)
        self.runner.change(tool, *arguments, *{"eksctl": (), "aws": region}.get(tool, inside))

    def has_kubeconfig(self, world: World) -> bool:
        """Whether it is that of the cluster there is."""
        there, cluster = self.kubeconfig, world.cluster
        return (
            cluster is not None and there.is_file() and cluster.endpoint in there.read_text(encoding="utf-8")
        )

    def write_kubeconfig(self, world: World) -> None:
        """A kubeconfig of its own in the cluster's folder, unless it is there; the user's is not touched."""
        if not self.has_kubeconfig(world):
            place = ("--name", world.name, "--kubeconfig", str(self.kubeconfig))
            self.change("aws", "eks", "update-kubeconfig", *place)

    def inside(self, world: World, *arguments: str) -> Any:
        """What kubectl or helm says in JSON of what is in the cluster; None without an answer."""
        if not self.has_kubeconfig(world):
            return None
        tool, *rest = arguments
        answer = self.runner.look(tool, "--kubeconfig", str(self.kubeconfig), *rest, "-o", "json")
        try:
            return json.loads(answer.stdout) if answer.returncode == 0 else None
        except json.JSONDecodeError:
            return None

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
                say = f"another command is at work on {self.file.name}"
                raise ProvisionError(f"{say}; its log is {self.folder / 'cluster.log'}") from taken
            yield


def open_site(
    path: Path,
    home: Path,
    *,
    is_dry: bool,
    show: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    session: Session | None = None,
) -> Site:
    """The site of the cluster file at `path`; environment and credentials are this process's if not given.

    Generated files and the log go to ``clusters/REGION.NAME`` below `home`.

    Raises:
        ClusterFileError: the file has mistakes.
    """
    file = read(path)
    folder = home / "clusters" / f"{file.region}.{file.name}"
    given = dict(os.environ if environment is None else environment)
    chart, problem = _chart(file, path)
    return Site(
        file=file,
        aws=Aws(session or open_session(file.region), file.region),
        runner=Runner(environment=given, log=folder / "cluster.log", show=show, is_dry=is_dry),
        folder=folder,
        chart=chart,
        chart_problem=problem,
        show=show,
    )


def _chart(file: ClusterFile, path: Path) -> tuple[Path, str]:
    given = file.install.chart.path
    chart = Path(__file__).resolve().parents[2] / _CHART if given is None else path.parent / given
    is_chart = (chart / "Chart.yaml").is_file() or (chart.is_file() and chart.suffix == ".tgz")
    problem = f"{chart} is no chart, that is, a folder with Chart.yaml or a .tgz archive: name {_CHART} of a checkout"
    return chart, "" if is_chart else problem
