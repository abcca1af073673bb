"""Settings of a worker: the only reader of its environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cerebro.contract.failure_rules import FailureRule
from cerebro.contract.records import PodRef
from cerebro.errors import ClusterError
from cerebro.runtime import sandbox_settings
from cerebro.runtime.failure_rule_settings import cluster_rules
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
    real,
    whole,
)
from cerebro.runtime.usage import cores
from cerebro.runtime.volumes import Volumes

SECRETS = ("CEREBRO_TOKEN",)
"""Variables that children, which run user code, never see."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a worker is told.

    Attributes:
        server: kvs_api's base URL (``CEREBRO_SERVER``, default ``http://127.0.0.1:7070``).
        token: bearer token (``CEREBRO_TOKEN``, required).
        worker: name, stable over restarts (``CEREBRO_WORKER``, required).
        volumes: mounted volumes.
        cores: processor cores to use (``CEREBRO_CORES``, default all that it may use).
        node: name of the machine that its pod runs on (``CEREBRO_NODE``); empty: the machine's own.
        pod: container of a pod that this process runs in (``CEREBRO_POD``, ``CEREBRO_POD_UID``,
            ``CEREBRO_CONTAINER``; all or none). Workers of one pod share its shard volume.
        devices: how many devices, on each of which a task may run beside the others (``CEREBRO_DEVICES``, default all
            GPUs that it may use, or one where there are none).
        device_memory: bytes that a device which is a share of cores is to have (``CEREBRO_DEVICE_MEMORY``, such as
            ``512MiB``); `None`: it takes what the machine has.
        weight: share of the data (``CEREBRO_WEIGHT``, default its number of devices).
        lease_s: a task is taken back when its worker is silent for longer (``CEREBRO_LEASE_S``). 10 s.
        report_s: longest pause between two reports; a fifth of the lease, so that four may be lost.
        grace_s: when the worker is asked to end, how long the running task may take to reach its next batch or row, or
            to save what is complete (``CEREBRO_GRACE_S``). 20 s: two thirds of what Kubernetes gives a pod by default.
        health_bind: host:port that answers whether the worker is well (``CEREBRO_HEALTH_BIND``); off when empty.
        address: at which other workers reach this one, for sub-epochs that they train together (``CEREBRO_ADDRESS``);
            it listens there. Default: that of this machine alone, and in a pod none: then it trains with no others.
        gang_port: where (``CEREBRO_GANG_PORT``); 0, the default: any that is free.
        savepoint_s: seconds between two savepoints of a sub-epoch that takes them, 0 for none but at the worker's end
            (``CEREBRO_SAVEPOINT_S``, default: as it is best, see `cerebro.worker.training.savepoints.Timer`).
        task_log_bytes: that the log of an attempt keeps at most, its beginning and its end (``CEREBRO_TASK_LOG_MIB``,
            default 64 MiB); 0: any number.
        sandbox: whether processes with user code are kept from the files of other experiments (``CEREBRO_SANDBOX``,
            ``on`` or ``off``, the default).
        sandbox_writable: further folders that they may write to (``CEREBRO_SANDBOX_WRITABLE``, with colons between).
        failure_rules: of the cluster, before those of a run (``CEREBRO_FAILURE_RULES``, JSON: a list of objects with
            ``name``, ``pattern`` and ``action``); default: none.
        etl_hang_timeout_s: an ETL task none of whose rows advanced for so long is given up. 600 s.
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
    address: str = "127.0.0.1"
    gang_port: int = 0
    savepoint_s: float | None = None
    task_log_bytes: int = 64 << 20
    sandbox: bool = False
    sandbox_writable: tuple[Path, ...] = ()
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
        return cls(
            server=environment.get("CEREBRO_SERVER", "http://127.0.0.1:7070"),
            token=environment["CEREBRO_TOKEN"],
            worker=environment["CEREBRO_WORKER"],
            volumes=Volumes.from_environment(environment),
            cores=whole(CORES, environment, cores.available()),
            node=environment.get("CEREBRO_NODE", ""),
            pod=pod,
            devices=whole(DEVICES, environment, 0) or None,
            device_memory=device_memory(environment),
            weight=WEIGHT.of(environment),
            lease_s=real(LEASE_S, environment, 10.0),
            grace_s=real(GRACE_S, environment, 20.0),
            health_bind=environment.get("CEREBRO_HEALTH_BIND", ""),
            address=environment.get("CEREBRO_ADDRESS") or ("" if pod else "127.0.0.1"),
            gang_port=whole(GANG_PORT, environment, 0),
            savepoint_s=SAVEPOINT_S.of(environment),
            task_log_bytes=whole(TASK_LOG_MIB, environment, 64) << 20,
            sandbox=sandbox_settings.mode(environment),
            sandbox_writable=sandbox_settings.writable(environment),
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
