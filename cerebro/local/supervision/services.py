"""List of a local cluster's services: command, environment, start stage and probes of each.

`services` returns data; `cerebro.local.__main__` calls it and `Supervisor` runs the result. No process starts here.
Services read their settings from the environment:

    CEREBRO_TOKEN               bearer token of kvs_api             all but redis and tensorboard
    CEREBRO_..._TOKEN           the other services' tokens          kvs_api, in users mode
    CEREBRO_SERVER              base URL of kvs_api                 controller, dispatcher, workers
    CEREBRO_BIND                host:port to listen on              kvs_api, dispatcher
    CEREBRO_REDIS_URL           the database's socket               kvs_api
    CEREBRO_VOLUMES             folder with a folder per volume     kvs_api, controller, dispatcher, workers
    CEREBRO_VOLUME_LOGS         folder of logs                      kvs_api, controller, dispatcher, workers
    CEREBRO_VOLUME_SHARDS       the worker's own volume             workers
    CEREBRO_WORKER              name                                workers
    CEREBRO_CORES               processor cores to use              workers (OMP_NUM_THREADS says the same)
    CEREBRO_DEVICES             sub-epochs to train at the same time    workers, if the user sets it
    CUDA_VISIBLE_DEVICES        GPUs to use                         workers, on a machine with GPUs
    CEREBRO_GRACE_S             time for the task at hand at SIGTERM   workers
    CEREBRO_LINK_TENSORBOARD, CEREBRO_LINK_NOTEBOOK   addresses to show   dispatcher
    CEREBRO_HEALTH_BIND         host:port for probes, and metrics   kvs_api, dispatcher, controller, workers
    CEREBRO_HEALTH_METRICS      0: no metrics there                 kvs_api, dispatcher
    CEREBRO_TENSORBOARD_KEY, CEREBRO_PAGE   key of passes, sign-in page   tensorboard
    CEREBRO_HOME                the cluster that notebooks join     notebook

The launcher's other CEREBRO_... variables, such as CEREBRO_WEIGHT, are passed on.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cerebro.local import damage, database, environment, tensorboard
from cerebro.local.home import ClusterHome
from cerebro.local.supervision import liveness, readiness
from cerebro.local.supervision.ports import HOST
from cerebro.local.supervision.processes import MARKER
from cerebro.runtime.usage import cores
from cerebro.runtime.web import tickets

_DATABASE, _STORE, _REST = range(3)
_TENSORBOARD = 5
"""Niceness of TensorBoard: a third of the usual share of a busy core. With less it would take minutes to start."""
_HANDLERS = ("etl_worker", "cerebro.worker.searches", "model_hopper", "trial_runner")
"""Task handlers of each worker."""

_WITH_PAGE = ("dispatcher", "kvs_api")
"""Services with their own port, where they also serve metrics."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """One process to keep running.

    Attributes:
        name: unique; names its log.
        command: program and arguments.
        environment: complete environment; nothing is inherited.
        stage: a stage starts when the required services of earlier stages are ready, and stops before them.
        ready: see `readiness.Probe`.
        live: liveness probe of a ready service; without an answer it is restarted. `None`: no probe.
        required: True if the cluster is ready only with it.
        renewed: True to restart it when an added service changes its environment.
        niceness: see `with_parent_death_signal`; services that yield to training are nicer.
        explain: returns why a process ended before it was ready, as the end of a sentence.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stage: int = _REST
    ready: readiness.Probe
    live: liveness.Probe | None = None
    required: bool = True
    renewed: bool = False
    niceness: int = 0
    explain: Callable[[], str] = lambda: ""


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """Options from the user.

    Attributes:
        devices: devices per worker. `None`: its GPUs, or one.
        gpus: identities of the machine's GPUs.
        share: maximum threads per worker, from an earlier size. `None`: no limit.
    """

    workers: int
    tensorboard: bool
    notebook: bool = False
    devices: int | None = None
    gpus: tuple[str, ...] = ()
    share: int | None = None

    @property
    def listening(self) -> tuple[str, ...]:
        """Names that need a port: services, metrics of services without a page, and probes of the others."""
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
        """Names of the workers, in the order of their numbers."""
        return tuple(f"worker-{number}" for number in range(self.workers))

    @property
    def cores(self) -> int:
        """Cores per worker: an equal share of the available cores, at least one per device.

        With fewer workers the share does not grow: workers would restart during a run, and bits depend on the
        number of threads. With more workers it shrinks, or all would be slow.
        """
        equal = max(1, cores.available() // max(1, self.workers))
        return max(self.devices or 1, equal if self.share is None else min(equal, self.share))

    def gpus_of(self, worker: int) -> tuple[str, ...]:
        """Return an equal share of the GPUs. Workers share a GPU only if there are fewer GPUs than workers."""
        if len(self.gpus) < self.workers:
            return self.gpus[worker % len(self.gpus) :][:1] if self.gpus else ()
        return self.gpus[worker :: self.workers]

    @property
    def most_devices(self) -> int:
        """Default number of devices per worker."""
        return len(self.gpus_of(0)) or 1


def services(
    options: ServiceOptions,
    home: ClusterHome,
    ports: Mapping[str, int],
    socket: Path,
    inherited: Mapping[str, str],
) -> tuple[Service, ...]:
    """List all services of a local cluster.

    Args:
        options: number of workers, TensorBoard, JupyterLab.
        home: the cluster's folder; its folders and token exist.
        ports: ports of `options.listening`.
        socket: the database's socket.
        inherited: environment of the cluster's launcher; only named variables are passed on.

    Raises:
        ClusterError: no database server is installed.
    """
    volumes = {"CEREBRO_VOLUMES": str(home.volumes), "CEREBRO_VOLUME_LOGS": str(home.logs)}
    tokens = _service_tokens(home, inherited)

    def client(role: str) -> dict[str, str]:
        """Return the variables for the connection of a service with this role to kvs_api."""
        return {"CEREBRO_TOKEN": tokens[role], "CEREBRO_SERVER": f"http://{HOST}:{ports['kvs_api']}"}

    marker = {MARKER: str(home.path)}
    threads = options.cores

    def ours(name: str, *command: str, variables: Mapping[str, str], **more: Any) -> Service:
        """Return one of Cerebro's own services, which answer probes."""
        health = {"CEREBRO_HEALTH_BIND": f"{HOST}:{ports[health_port(name)]}"}
        if name in _WITH_PAGE:  # they serve metrics there, with the token
            health["CEREBRO_HEALTH_METRICS"] = "0"
        return Service(
            name=name,
            command=_module(*(command or (name,))),
            environment={**variables, **volumes, **health, **marker},
            live=liveness.http(ports[health_port(name)]),
            **{"ready": readiness.http(ports[health_port(name)]), **more},
        )

    def worker(number: int, name: str) -> Service:
        chosen: dict[str, str] = {}
        if options.devices is not None:
            chosen["CEREBRO_DEVICES"] = str(options.devices)
        if options.gpus:
            chosen["CUDA_VISIBLE_DEVICES"] = ",".join(options.gpus_of(number))
        settings = chosen | {
            "CEREBRO_WORKER": name,
            "CEREBRO_CORES": str(threads),
            "CEREBRO_VOLUME_SHARDS": str(home.shards(name)),
            # Below the supervisor's own grace.
            "CEREBRO_GRACE_S": inherited.get("CEREBRO_GRACE_S", "3"),
        }
        return ours(
            name,
            *("cerebro.worker.agent", "--handlers", *_HANDLERS),
            variables=environment.worker(inherited, threads) | client("worker") | settings,
            # More workers have smaller shares of the cores; a worker with its old share would slow down the
            # others. It releases its sub-epoch, which counts no attempt, and restarts.
            renewed=True,
        )

    database_server = Service(
        name="redis",
        command=database.server_command(home.store, socket),
        environment=environment.bare(inherited) | marker,
        stage=_DATABASE,
        ready=readiness.redis(socket),
        live=liveness.redis(socket),
        explain=partial(damage.explained, home.store, home.log("redis")),
    )
    store = {
        "CEREBRO_TOKEN": home.token(),
        "CEREBRO_BIND": f"{HOST}:{ports['kvs_api']}",
        "CEREBRO_REDIS_URL": f"unix://{socket}",
        **{f"CEREBRO_{role.upper()}_TOKEN": token for role, token in tokens.items() if token != home.token()},
    }
    page = {"CEREBRO_BIND": f"{HOST}:{ports['dispatcher']}"} | {
        f"CEREBRO_LINK_{name.upper()}": f"http://{HOST}:{ports[name]}"
        for name in ("tensorboard", "notebook")
        if name in options.listening
    }
    return (
        database_server,
        ours(
            "kvs_api",
            variables=environment.control_plane(inherited) | store,
            stage=_STORE,
            ready=readiness.http(ports["kvs_api"]),
        ),
        ours("controller", variables=environment.reader(inherited) | client("controller")),
        ours(
            "dispatcher",
            # The start page previews the files of locators, so it needs the variables for object stores.
            variables=environment.reader(inherited) | client("dispatcher") | page,
            ready=readiness.http(ports["dispatcher"]),
            renewed=True,  # its page links other services, and it reloads its state
        ),
        *(worker(number, name) for number, name in enumerate(options.worker_names)),
        *([_tensorboard(home, ports, inherited)] if options.tensorboard else []),
        *([_notebook(home, ports["notebook"], inherited, threads)] if options.notebook else []),
    )


def _service_tokens(home: ClusterHome, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the token of each service by role: the cluster's, or in users mode one per role."""
    has_users = inherited.get("CEREBRO_AUTH_MODE", "") == "users"
    return {
        role: home.service_token(role) if has_users else home.token()
        for role in ("controller", "dispatcher", "worker")
    }


def _tensorboard(home: ClusterHome, ports: Mapping[str, int], inherited: Mapping[str, str]) -> Service:
    port, folder = ports["tensorboard"], home.volumes / "metrics" / "tensorboard"
    variables = {
        tensorboard.KEY: tickets.key_of(_service_tokens(home, inherited)["dispatcher"]).hex(),
        tensorboard.PAGE: f"http://{HOST}:{ports['dispatcher']}",
        # It writes its address into the temporary folder; the file of a killed process would mislead other programs.
        "TMPDIR": str(home.scratch),
        MARKER: str(home.path),
    }
    options = {"logdir": folder, "host": HOST, "port": port, "reload_interval": 5}
    return Service(
        name="tensorboard",
        command=_module("cerebro.local.tensorboard", *(f"--{key}={value}" for key, value in options.items())),
        environment=environment.bare(inherited) | variables,
        ready=readiness.http(port, "/live"),
        required=False,
        niceness=_TENSORBOARD,
    )


def _notebook(home: ClusterHome, port: int, inherited: Mapping[str, str], threads: int) -> Service:
    # Set as a password: JupyterLab puts tokens into addresses, in files and messages.
    digest = hashlib.sha256(f"{home.token()}{home.key}".encode()).hexdigest()
    options = {
        "ServerApp.ip": HOST,
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": home.notebooks,
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "PasswordIdentityProvider.hashed_password": f"sha256:{home.key}:{digest}",
    }
    # Kernels run user code: they get the workers' environment, and find the cluster by its home.
    users = environment.worker(inherited, threads)
    variables = {
        "CEREBRO_HOME": str(home.path),
        "JUPYTER_RUNTIME_DIR": str(home.run / "jupyter"),
        MARKER: str(home.path),
    }
    return Service(
        name="notebook",
        command=_module("jupyterlab", *(f"--{key}={value}" for key, value in options.items())),
        environment={k: v for k, v in users.items() if k not in ("CEREBRO_SERVER", "CEREBRO_TOKEN")}
        | variables,
        ready=readiness.http(port, "/api"),
        required=False,
    )


def health_port(service: str) -> str:
    """Return the name of the port for a service's probes, and for its metrics if it has no page."""
    return f"{service} {'health' if service in _WITH_PAGE else 'metrics'}"


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    # -P: a file in the current folder must not stand in for a module of the same name.
    return (sys.executable, "-P", "-m", name, *arguments)
