"""What runs in a local cluster: per service its command, environment, place in the order of starting and
readiness.

A list of facts, in the words of `supervisor`, which knows none of these services. Services read their
settings from the environment, where they find:

    CEREBRO_TOKEN               bearer token of kvs_api             all but redis and tensorboard
    CEREBRO_SERVER              base URL of kvs_api                 controller, dispatcher, workers
    CEREBRO_BIND                host:port to listen on              kvs_api, dispatcher
    CEREBRO_REDIS_URL           the database's socket               kvs_api
    CEREBRO_VOLUMES             folder with a folder per volume     kvs_api, controller, dispatcher, workers
    CEREBRO_VOLUME_LOGS         where logs go instead               kvs_api, controller, dispatcher, workers
    CEREBRO_VOLUME_SHARDS       the worker's own volume             workers
    CEREBRO_WORKER              name                                workers
    CEREBRO_CORES               processor cores to use              workers (OMP_NUM_THREADS says the same)
    CEREBRO_GRACE_S             time for the task at hand at SIGTERM   workers
    CEREBRO_LINK_TENSORBOARD    address to show                     dispatcher

Other CEREBRO_... variables of whoever starts the cluster, such as CEREBRO_WEIGHT, are handed on to these.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cerebro.local import database, environment, readiness
from cerebro.local.home import ClusterHome
from cerebro.local.ports import HOST
from cerebro.local.processes import MARKER

_DATABASE, _STORE, _REST = range(3)


@dataclass(frozen=True, kw_only=True)
class Service:
    """One process to keep running.

    Attributes:
        name: unique; names its log.
        command: program and arguments.
        environment: all of it, nothing is inherited.
        stage: services of a stage are first started when all required ones of earlier stages are ready, and
            stopped before these.
        ready: see `readiness.Probe`.
        required: whether the cluster counts as ready only with it.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stage: int
    ready: readiness.Probe
    required: bool = True


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the user chose."""

    workers: int
    tensorboard: bool

    @property
    def listening(self) -> tuple[str, ...]:
        """Services that need a port."""
        return ("dispatcher", "tensorboard", "kvs_api") if self.tensorboard else ("dispatcher", "kvs_api")

    @property
    def cores(self) -> int:
        """Cores per worker: an equal share of those this process may use, at least one."""
        return max(1, len(os.sched_getaffinity(0)) // self.workers)


def services(
    plan: Plan, home: ClusterHome, ports: Mapping[str, int], socket: Path, inherited: Mapping[str, str]
) -> tuple[Service, ...]:
    """All services of a local cluster.

    Args:
        plan: number of workers and whether TensorBoard runs.
        home: where everything lies; its folders and token exist.
        ports: of `plan.listening`.
        socket: where the database listens.
        inherited: environment of whoever started the cluster; only named variables of it are passed on.

    Raises:
        ClusterError: no database server is installed.
    """
    return _List(plan, home, ports, socket, inherited).all()


class _List:
    def __init__(
        self,
        plan: Plan,
        home: ClusterHome,
        ports: Mapping[str, int],
        socket: Path,
        inherited: Mapping[str, str],
    ) -> None:
        self._plan, self._home, self._ports, self._socket, self._inherited = (
            plan,
            home,
            ports,
            socket,
            inherited,
        )
        self._marker = {MARKER: str(home.path)}
        self._volumes = {
            "CEREBRO_VOLUMES": str(home.volumes),
            "CEREBRO_VOLUME_LOGS": str(home.logs),
        }
        self._client = {
            "CEREBRO_TOKEN": home.token(),
            "CEREBRO_SERVER": f"http://{HOST}:{ports['kvs_api']}",
        }

    def all(self) -> tuple[Service, ...]:
        workers = (self._worker(f"worker-{number}") for number in range(self._plan.workers))
        optional = (self._tensorboard(),) if self._plan.tensorboard else ()
        return (
            self._database(),
            self._kvs_api(),
            self._controller(),
            self._dispatcher(),
            *workers,
            *optional,
        )

    def _database(self) -> Service:
        return Service(
            name="redis",
            command=database.server_command(self._home.store, self._socket),
            environment=environment.bare(self._inherited) | self._marker,
            stage=_DATABASE,
            ready=readiness.redis(self._socket),
        )

    def _kvs_api(self) -> Service:
        own = {
            "CEREBRO_TOKEN": self._home.token(),
            "CEREBRO_BIND": f"{HOST}:{self._ports['kvs_api']}",
            "CEREBRO_REDIS_URL": f"unix://{self._socket}",
        }
        return Service(
            name="kvs_api",
            command=_module("kvs_api"),
            environment=environment.control_plane(self._inherited) | self._volumes | own | self._marker,
            stage=_STORE,
            ready=readiness.http(self._ports["kvs_api"], "/health"),
        )

    def _controller(self) -> Service:
        return Service(
            name="controller",
            command=_module("controller"),
            environment=environment.reader(self._inherited) | self._volumes | self._client | self._marker,
            stage=_REST,
            ready=readiness.connected(self._ports["kvs_api"]),
        )

    def _dispatcher(self) -> Service:
        own = {"CEREBRO_BIND": f"{HOST}:{self._ports['dispatcher']}"}
        if self._plan.tensorboard:
            own["CEREBRO_LINK_TENSORBOARD"] = f"http://{HOST}:{self._ports['tensorboard']}"
        return Service(
            name="dispatcher",
            command=_module("dispatcher"),
            environment=environment.control_plane(self._inherited)
            | self._volumes
            | self._client
            | own
            | self._marker,
            stage=_REST,
            ready=readiness.http(self._ports["dispatcher"], "/health"),
        )

    def _worker(self, name: str) -> Service:
        cores = self._plan.cores
        own = {
            "CEREBRO_WORKER": name,
            "CEREBRO_CORES": str(cores),
            "CEREBRO_VOLUME_SHARDS": str(self._home.shards(name)),
            # Below the supervisor's own grace.
            "CEREBRO_GRACE_S": self._inherited.get("CEREBRO_GRACE_S", "3"),
        }
        return Service(
            name=name,
            command=_module("cerebro.agent", "--handlers", "etl_worker", "model_hopper"),
            environment=environment.worker(self._inherited, cores)
            | self._volumes
            | self._client
            | own
            | self._marker,
            stage=_REST,
            ready=readiness.registered(self._ports["kvs_api"], self._home.token(), name),
        )

    def _tensorboard(self) -> Service:
        port = self._ports["tensorboard"]
        place = ("--logdir", str(self._home.volumes / "metrics"), "--host", HOST, "--port", str(port))
        return Service(
            name="tensorboard",
            command=_module("tensorboard.main", *place, "--reload_interval", "5"),
            # It notes its address in the temporary folder; a killed one would mislead other programs for ever.
            environment=environment.bare(self._inherited)
            | {"TMPDIR": str(self._home.scratch)}
            | self._marker,
            stage=_REST,
            ready=readiness.http(port, "/"),
            required=False,
        )


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    # -P: a file in the current folder must not stand in for a module of the same name.
    return (sys.executable, "-P", "-m", name, *arguments)
