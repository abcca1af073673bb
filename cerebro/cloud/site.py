"""`Site`: one cluster with its file, AWS connection, executables, and a folder for generated files, kubeconfig and log.

`cerebro.cli.administration.aws` opens it; `actions`, `steps` and `preflight` take it. It decides nothing about the
cluster. Only this module reads the environment of the process.
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
from cerebro.runtime.shipped_files import shipped_folder


@dataclass(kw_only=True)
class Site:
    """One cluster and the means to change it. `zones` is set once the nodes' zone is known."""

    file: ClusterFile
    aws: Aws
    runner: Runner
    folder: Path
    """Folder of generated files, kubeconfig and log, which can be deleted."""
    chart: Path
    """The platform's chart."""
    chart_problem: str
    """Reason why the chart cannot be used, or an empty text."""
    show: Callable[[str], None]
    zones: Sequence[str] = ()
    is_offline: bool = False
    """True in a dry run without credentials, which assumes that no resource exists."""

    @property
    def is_dry(self) -> bool:
        """True if changes are only shown."""
        return self.runner.is_dry

    @property
    def kubeconfig(self) -> Path:
        """The cluster's own kubeconfig; the user's is not changed."""
        return self.folder / "kubeconfig"

    def observe(self, *, with_resources: bool = False) -> World:
        """Read the present state."""
        if self.is_offline:
            return World(name=self.file.name)
        return observe(self.aws, self.file.name, with_resources=with_resources)

    def settled(self, world: World) -> World:
        """Return the world after AWS has completed its changes.

        Raises:
            ProvisionError: a change was not completed in time.
        """
        groups = [name for name, group in world.groups.items() if group.status == "UPDATING"]
        for stack in world.moving_stacks:
            self.wait_for_stack(world, stack)
        for group in groups:
            self.wait("eks", "nodegroup_active", clusterName=world.name, nodegroupName=group)
        return self.observe() if world.moving_stacks or groups else world

    def wait_for_stack(self, world: World, stack: str) -> None:
        """Wait until CloudFormation has completed a stack's change, if there is one."""
        verb, ends = world.stacks.get(stack, "").partition("_")[0], {"DELETE": "delete", "UPDATE": "update"}
        if stack in world.moving_stacks:
            self.wait("cloudformation", f"stack_{ends.get(verb, 'create')}_complete", StackName=stack)

    def wait(self, service: str, waiter: str, **arguments: str) -> None:
        """Wait with one of boto3's waiters; a dry run does not wait.

        Raises:
            ProvisionError: not completed in time, or AWS does not answer.
        """
        if not self.is_dry:
            self.show(f"  waiting for {' '.join(arguments.values())} ...")
            self.aws.wait(service, waiter, **arguments)

    def write(self, name: str, content: Any) -> str:
        """Write a generated YAML file and return its path; a dry run shows it.

        Args:
            content: the document, or a list of documents.
        """
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
        """Run a changing command of eksctl, aws (in the file's region), kubectl or helm (in the cluster)."""
        query_cluster, region = ("--kubeconfig", str(self.kubeconfig)), ("--region", self.file.region)
        self.runner.change(tool, *arguments, *{"eksctl": (), "aws": region}.get(tool, query_cluster))

    def has_kubeconfig(self, world: World) -> bool:
        """Return True if the kubeconfig is of the existing cluster."""
        path, cluster = self.kubeconfig, world.cluster
        return cluster is not None and path.is_file() and cluster.endpoint in path.read_text(encoding="utf-8")

    def write_kubeconfig(self, world: World) -> None:
        """Write the cluster's kubeconfig unless it exists; the user's is not changed."""
        if not self.has_kubeconfig(world):
            arguments = ("--name", world.name, "--kubeconfig", str(self.kubeconfig))
            self.change("aws", "eks", "update-kubeconfig", *arguments)

    def query_cluster(self, world: World, *arguments: str) -> Any:
        """Return the JSON output of kubectl or helm, or `None` without an answer."""
        if not self.has_kubeconfig(world):
            return None
        tool, *rest = arguments
        answer = self.runner.read(tool, "--kubeconfig", str(self.kubeconfig), *rest, "-o", "json")
        try:
            return json.loads(answer.stdout) if answer.returncode == 0 else None
        except json.JSONDecodeError:
            return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the cluster's lock on this machine.

        Raises:
            ProvisionError: another command holds it.
        """
        if self.is_dry:
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as taken:
                where = self.folder / "cluster.log"
                raise ProvisionError(
                    f"another command is at work on {self.file.name}: see its log {where}"
                ) from taken
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
    """Open the site of a cluster file.

    Generated files and the log are in ``clusters/REGION.NAME`` below `home`.

    Args:
        environment, session: default: of this process.

    Raises:
        ClusterFileError: the file has mistakes.
    """
    file = read(path)
    folder = home / "clusters" / f"{file.region}.{file.name}"
    variables = dict(os.environ if environment is None else environment)
    chart, problem = _chart(file, path)
    return Site(
        file=file,
        aws=Aws(session or open_session(file.region), file.region),
        runner=Runner(environment=variables, log=folder / "cluster.log", show=show, is_dry=is_dry),
        folder=folder,
        chart=chart,
        chart_problem=problem,
        show=show,
    )


def _chart(file: ClusterFile, path: Path) -> tuple[Path, str]:
    variables = file.install.chart.path
    chart = shipped_folder("chart") if variables is None else path.parent / variables
    is_chart = (chart / "Chart.yaml").is_file() or (chart.is_file() and chart.suffix == ".tgz")
    problem = (
        f"{chart} is no chart, which is a folder with Chart.yaml or a .tgz archive: see `cerebro files chart`"
    )
    return chart, "" if is_chart else problem
