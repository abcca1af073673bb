"""Settings of a worker: the only reader of its environment variables.

`worker.agent.__main__` reads them once; the agent's modules receive the frozen `Settings`. `processes.process` passes a
child its settings as command-line arguments. A missing or invalid value raises `ClusterError` at start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cerebro.contract.failure_rules import FailureRule
from cerebro.contract.records import PodRef
from cerebro.errors import ClusterError
from cerebro.runtime.failure_rule_settings import cluster_rules
from cerebro.runtime.isolation import sandbox_settings
from cerebro.runtime.numeric_settings import (
    CORES,
    DEVICES,
    GANG_PORT,
    GRACE_S,
    LEASE_S,
    SAVEPOINT_S,
    TASK_LOG_MIB,
    WEIGHT,
    device_memory,
    frozen_cache_bytes,
    integer,
    real,
)
from cerebro.runtime.usage import cores
from cerebro.runtime.volumes import Volumes

SECRETS = ("CEREBRO_TOKEN",)
"""Variables that children, which run user code, never see."""


@dataclass(frozen=True, kw_only=True)
class GangSettings:
    """Where a worker listens for other workers of a gang.

    Attributes:
        address: address to listen on (``CEREBRO_ADDRESS``). Default: a local address; in a pod none, which
            excludes the worker from gangs.
        port: port of that address (``CEREBRO_GANG_PORT``); 0, the default, means any free port.
    """

    address: str = "127.0.0.1"
    port: int = 0


@dataclass(frozen=True, kw_only=True)
class SandboxSettings:
    """File access of user code.

    Attributes:
        is_on: True if user code cannot access files of other experiments (``CEREBRO_SANDBOX``, ``on`` or ``off``, the
            default).
        writable_folders: further folders that user code may change (``CEREBRO_SANDBOX_WRITABLE``, separated by colons).
    """

    is_on: bool = False
    writable_folders: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A worker's settings, from environment variables.

    Attributes:
        server: kvs_api's base URL (``CEREBRO_SERVER``, default ``http://127.0.0.1:7070``).
        token: bearer token (``CEREBRO_TOKEN``, required).
        worker: name, stable over restarts (``CEREBRO_WORKER``, required).
        volumes: mounted volumes.
        cores: processor cores to use (``CEREBRO_CORES``, default all available ones).
        node: name of the pod's machine (``CEREBRO_NODE``); "" for this machine's own name.
        pod: the pod's container of this process (``CEREBRO_POD``, ``CEREBRO_POD_UID``, ``CEREBRO_CONTAINER``; all or
            none). Workers of one pod share its shard volume.
        devices: number of devices, each with its own concurrent task (``CEREBRO_DEVICES``, default all available GPUs,
            or one device without GPUs).
        device_memory: bytes of a CPU device (``CEREBRO_DEVICE_MEMORY``, such as ``512MiB``); `None` for no limit.
        weight: share of the data (``CEREBRO_WEIGHT``, default its number of devices).
        lease_s: a task is revoked if its worker is silent for longer (``CEREBRO_LEASE_S``). 10 s.
        report_s: longest pause between two reports; a fifth of the lease, so that four may be lost.
        grace_s: seconds for the running task of a draining worker to reach its next batch or row, or to save completed
            work (``CEREBRO_GRACE_S``). 20 s: two thirds of Kubernetes' default grace period.
        health_bind: host:port of the health endpoint (``CEREBRO_HEALTH_BIND``); "" disables it.
        gangs: address for other workers of a gang.
        savepoint_s: seconds between savepoints of a resumable sub-epoch, 0 for only at the worker's end
            (``CEREBRO_SAVEPOINT_S``, default automatic, see `cerebro.worker.training.checkpoints.savepoints.Timer`).
        task_log_bytes: maximum bytes of an attempt's log, its beginning and its end (``CEREBRO_TASK_LOG_MIB``, default
            64 MiB); 0 for no limit.
        sandbox: file access of user code.
        failure_rules: the cluster's rules, before a run's (``CEREBRO_FAILURE_RULES``, JSON: a list of objects with
            ``name``, ``pattern`` and ``action``); default: no rules.
        etl_hang_timeout_s: seconds without a new row after which an ETL task is ended. 600 s.
    """

    server: str
    token: str = field(repr=False)
    worker: str
    volumes: Volumes
    cores: int
    node: str = ""
    pod: PodRef | None = None
    devices: int | None = None
    device_memory: int | None = None
    weight: float | None = None
    lease_s: float = 10.0
    grace_s: float = 20.0
    health_bind: str = ""
    gangs: GangSettings = GangSettings()
    savepoint_s: float | None = None
    task_log_bytes: int = 64 << 20
    sandbox: SandboxSettings = SandboxSettings()
    failure_rules: tuple[FailureRule, ...] = ()
    etl_hang_timeout_s: float = 600.0

    @property
    def report_s(self) -> float:
        """Longest pause between two reports, in seconds."""
        return self.lease_s / 5

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read and check the environment."""
        missing = [name for name in ("CEREBRO_TOKEN", "CEREBRO_WORKER") if not environment.get(name)]
        if missing:
            raise ClusterError(
                f"{' and '.join(missing)} not set: set them, because a worker needs a token and a name"
            )
        pod = _pod(environment)
        # Children read CEREBRO_FROZEN_CACHE_MIB; an invalid value is an error of the worker.
        frozen_cache_bytes(environment)
        return cls(
            server=environment.get("CEREBRO_SERVER", "http://127.0.0.1:7070"),
            token=environment["CEREBRO_TOKEN"],
            worker=environment["CEREBRO_WORKER"],
            volumes=Volumes.from_environment(environment),
            cores=integer(CORES, environment, cores.available()),
            node=environment.get("CEREBRO_NODE", ""),
            pod=pod,
            devices=integer(DEVICES, environment, 0) or None,
            device_memory=device_memory(environment),
            weight=WEIGHT.of(environment),
            lease_s=real(LEASE_S, environment, 10.0),
            grace_s=real(GRACE_S, environment, 20.0),
            health_bind=environment.get("CEREBRO_HEALTH_BIND", ""),
            gangs=GangSettings(
                address=environment.get("CEREBRO_ADDRESS") or ("" if pod else "127.0.0.1"),
                port=integer(GANG_PORT, environment, 0),
            ),
            savepoint_s=SAVEPOINT_S.of(environment),
            task_log_bytes=integer(TASK_LOG_MIB, environment, 64) << 20,
            sandbox=SandboxSettings(
                is_on=sandbox_settings.mode(environment),
                writable_folders=sandbox_settings.writable(environment),
            ),
            failure_rules=cluster_rules(environment),
        )


def _pod(environment: Mapping[str, str]) -> PodRef | None:
    names = ("CEREBRO_POD", "CEREBRO_POD_UID", "CEREBRO_CONTAINER")
    pod, uid, container = (environment.get(name, "") for name in names)
    if not (pod or uid or container):
        return None
    if not (pod and uid and container):
        missing = [name for name in names if not environment.get(name)]
        raise ClusterError(
            f"{' and '.join(missing)} not set: a worker in a pod needs all of {', '.join(names)}"
        )
    return PodRef(name=pod, uid=uid, container=container)
