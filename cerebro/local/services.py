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
    CEREBRO_LINK_TENSORBOARD, CEREBRO_LINK_NOTEBOOK   addresses to show   dispatcher
    CEREBRO_HEALTH_BIND         host:port for probes, and metrics   kvs_api, dispatcher, controller, workers
    CEREBRO_HEALTH_METRICS      0: no metrics there                 kvs_api, dispatcher
    CEREBRO_TENSORBOARD_KEY, CEREBRO_PAGE   who may come in, and where they sign in   tensorboard
    CEREBRO_HOME                the cluster that notebooks join     notebook

Other CEREBRO_... variables of whoever starts the cluster, such as CEREBRO_WEIGHT, are handed on to these.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cerebro.local import database, environment, liveness, readiness, tensorboard
from cerebro.local.home import ClusterHome
from cerebro.local.ports import HOST
from cerebro.local.processes import MARKER
from cerebro.runtime import tickets
from cerebro.runtime.usage import cores

_DATABASE, _STORE, _REST = range(3)
_TENSORBOARD = 5
"""Its niceness, a third of an ordinary process's share of a busy core: with less it would take minutes to start."""
_WITH_PAGE = ("dispatcher", "kvs_api")


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
        live: what it is asked from then on; one that does not answer is killed, and started anew. None: nothing.
        required: whether the cluster counts as ready only with it.
        renewed: whether it is started anew when what was added to the cluster changes its environment.
        niceness: see `with_parent_death_signal`; what runs beside training lets it go first.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stage: int
    ready: readiness.Probe
    live: liveness.Question | None = None
    required: bool = True
    renewed: bool = False
    niceness: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the user chose.

    Attributes:
        share: threads that a worker has computed with before; it is given no more. `None`: there was none before.
    """

    workers: int
    tensorboard: bool
    notebook: bool = False
    share: int | None = None

    @property
    def listening(self) -> tuple[str, ...]:
        """What needs a port: services, the metrics of those that serve nothing else, and the probes of the others."""
        chosen = {"tensorboard": self.tensorboard, "notebook": self.notebook}
        measured = ("controller", *self.worker_names)
        return (
            "dispatcher",
            "kvs_api",
            *(name for name, is_chosen in chosen.items() if is_chosen),
            *(health_port(name) for name in (*_WITH_PAGE, *measured)),
        )

    @property
    def worker_names(self) -> tuple[str, ...]:
        """In their order."""
        return tuple(f"worker-{number}" for number in range(self.workers))

    @property
    def cores(self) -> int:
        """Cores per worker: an equal share of those this process may use, at least one.

        Fewer workers do not get more than they had: they would have to start anew, in a run, and bits follow from the
        number of threads. More workers have to share, or all would be slow.
        """
        equal = max(1, cores.available() // self.workers)
        return equal if self.share is None else min(equal, self.share)


def services(
    plan: Plan, home: ClusterHome, ports: Mapping[str, int], socket: Path, inherited: Mapping[str, str]
) -> tuple[Service, ...]:
    """All services of a local cluster.

    Args:
        plan: number of workers, and whether TensorBoard and JupyterLab run.
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
        workers = map(self._worker, self._plan.worker_names)
        optional = [self._tensorboard()] if self._plan.tensorboard else []
        optional += [self._notebook()] if self._plan.notebook else []
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
            live=liveness.redis(self._socket),
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
            environment=environment.control_plane(self._inherited)
            | self._volumes
            | own
            | self._health("kvs_api")
            | self._marker,
            stage=_STORE,
            ready=readiness.http(self._ports["kvs_api"], "/health"),
            live=self._live("kvs_api"),
        )

    def _controller(self) -> Service:
        return Service(
            name="controller",
            command=_module("controller"),
            environment=environment.reader(self._inherited)
            | self._volumes
            | self._client
            | self._health("controller")
            | self._marker,
            stage=_REST,
            ready=readiness.connected(self._ports["kvs_api"]),
            live=self._live("controller"),
        )

    def _dispatcher(self) -> Service:
        own = {"CEREBRO_BIND": f"{HOST}:{self._ports['dispatcher']}"}
        for name in ("tensorboard", "notebook"):
            if name in self._plan.listening:
                own[f"CEREBRO_LINK_{name.upper()}"] = f"http://{HOST}:{self._ports[name]}"
        return Service(
            name="dispatcher",
            command=_module("dispatcher"),
            # The start page looks at what locators name, as the controller does later.
            environment=environment.reader(self._inherited)
            | self._volumes
            | self._client
            | own
            | self._health("dispatcher")
            | self._marker,
            stage=_REST,
            ready=readiness.http(self._ports["dispatcher"], "/health"),
            live=self._live("dispatcher"),
            renewed=True,  # it links what runs beside it, and holds nothing that is not read again
        )

    def _worker(self, name: str) -> Service:
        threads = self._plan.cores
        own = {
            "CEREBRO_WORKER": name,
            "CEREBRO_CORES": str(threads),
            "CEREBRO_VOLUME_SHARDS": str(self._home.shards(name)),
            # Below the supervisor's own grace.
            "CEREBRO_GRACE_S": self._inherited.get("CEREBRO_GRACE_S", "3"),
        }
        return Service(
            name=name,
            command=_module("cerebro.worker.agent", "--handlers", "etl_worker", "model_hopper"),
            environment=environment.worker(self._inherited, threads)
            | self._volumes
            | self._client
            | self._health(name)
            | own
            | self._marker,
            stage=_REST,
            ready=readiness.registered(self._ports["kvs_api"], self._home.token(), name),
            live=self._live(name),
            # More workers are a smaller share of the cores: one that kept its old share would slow down all. It gives
            # back the unit in hand, which counts no attempt, and starts again.
            renewed=True,
        )

    def _tensorboard(self) -> Service:
        port = self._ports["tensorboard"]
        place = (
            "--logdir",
            str(self._home.volumes / "metrics" / "tensorboard"),
            "--host",
            HOST,
            "--port",
            str(port),
        )
        own = {
            tensorboard.KEY: tickets.key_of(self._home.token()).hex(),
            tensorboard.PAGE: f"http://{HOST}:{self._ports['dispatcher']}",
            # It notes its address in the temporary folder; a killed one would mislead other programs for ever.
            "TMPDIR": str(self._home.scratch),
        }
        return Service(
            name="tensorboard",
            command=_module("cerebro.local.tensorboard", *place, "--reload_interval", "5"),
            environment=environment.bare(self._inherited) | own | self._marker,
            stage=_REST,
            ready=readiness.http(port, "/live"),
            required=False,
            niceness=_TENSORBOARD,
        )

    def _notebook(self) -> Service:
        port, salt = self._ports["notebook"], self._home.key
        # As a password: of what JupyterLab takes for a token it makes addresses, in files and messages.
        digest = hashlib.sha256(f"{self._home.token()}{salt}".encode()).hexdigest()
        options = {
            "ServerApp.ip": HOST,
            "ServerApp.port": port,
            "ServerApp.port_retries": 0,
            "ServerApp.root_dir": self._home.notebooks,
            "ServerApp.open_browser": False,
            "ServerApp.allow_root": True,
            "PasswordIdentityProvider.hashed_password": f"sha256:{salt}:{digest}",
        }
        # What its kernels run is the user's: the environment of workers, and the cluster is found by its home.
        inherited = {
            name: text
            for name, text in environment.worker(self._inherited, self._plan.cores).items()
            if name not in ("CEREBRO_SERVER", "CEREBRO_TOKEN")
        }
        own = {
            "CEREBRO_HOME": str(self._home.path),
            "JUPYTER_RUNTIME_DIR": str(self._home.run / "jupyter"),
        }
        return Service(
            name="notebook",
            command=_module("jupyterlab", *(f"--{key}={value}" for key, value in options.items())),
            environment=inherited | own | self._marker,
            stage=_REST,
            ready=readiness.http(port, "/api"),
            required=False,
        )

    def _health(self, name: str) -> dict[str, str]:
        found = {"CEREBRO_HEALTH_BIND": f"{HOST}:{self._ports[health_port(name)]}"}
        # Those that have a page tell their metrics there, to whoever has the token.
        return found | {"CEREBRO_HEALTH_METRICS": "0"} if name in _WITH_PAGE else found

    def _live(self, name: str) -> liveness.Question:
        return liveness.http(self._ports[health_port(name)])


def health_port(service: str) -> str:
    """What the port is called that answers a service's probes, and tells its metrics unless it has a page for them."""
    return f"{service} {'health' if service in _WITH_PAGE else 'metrics'}"


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    # -P: a file in the current folder must not stand in for a module of the same name.
    return (sys.executable, "-P", "-m", name, *arguments)
