"""Settings of the controller: the only reader of its environment variables."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from cerebro.errors import ClusterError
from cerebro.runtime.numeric_settings import (
    IDLE_S,
    INSTALLED_WORKERS,
    LEASE_S,
    LEAST_WORKERS,
    MAX_WORKERS,
    OPEN_RUNS,
    autoscaler_mode,
    integer,
    max_memory,
    real,
)
from cerebro.runtime.volumes import Volumes


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The controller's settings.

    Attributes:
        server: kvs_api's base URL (``CEREBRO_SERVER``, default ``http://127.0.0.1:7070``).
        token: bearer token (``CEREBRO_TOKEN``, required).
        volumes: mounted volumes; the controller writes metadata to `shared` and event files to `metrics`.
        lease_s: seconds of silence until a worker counts as lost (``CEREBRO_LEASE_S``). 10 s: five missed
            reports, so that a slow disk or a restarting store costs no sub-epoch.
        tick_s: maximum seconds between two reads of the workers. 1 s: the delay it adds to the lease.
        open_runs: maximum active runs; the others wait in the queue (``CEREBRO_OPEN_RUNS``). 8: each has part
            of the cluster and its log in memory. 1: one after another. After a reduction, active runs
            continue and no other starts.
        health_bind: host:port of the health probe (``CEREBRO_HEALTH_BIND``); off by default.
        holder: this controller's name in the leadership record (``CEREBRO_HOLDER``, default the host's name,
            which is the pod's in a cluster). A new process takes over at once from an earlier one with its
            name.
        process: id of this process. The store refuses late requests of an earlier process with the same name.
        autoscaler: ``off``, ``advise`` or ``act`` (``CEREBRO_AUTOSCALER``). ``advise`` publishes forecasts
            and the effect of other numbers of workers, and costs nothing.
        most_workers: maximum for the autoscaler (``CEREBRO_MOST_WORKERS``); 0: it acts only for runs with
            their own maximum.
        idle_s: seconds without a run after which workers are released, if the autoscaler acts
            (``CEREBRO_IDLE_S``). 1800 s: shorter pauses cost more than they save.
        least_workers: workers that stay then (``CEREBRO_LEAST_WORKERS``); 0 for scale to zero.
        installed_workers: number in the chart's values (``CEREBRO_INSTALLED_WORKERS``). The controller scales
            a new worker set to it, and an old one when it changes; 0 if unknown.
        max_memory: maximum bytes for the memory limit of a running worker's container
            (``CEREBRO_MOST_MEMORY``); 0 leaves it unchanged.
        worker_set: name of the workers' StatefulSet (``CEREBRO_WORKER_SET``); "" outside Kubernetes.
        namespace: namespace of the StatefulSet (``CEREBRO_NAMESPACE``); "" for the pod's own.
    """

    server: str
    token: str = field(repr=False)
    volumes: Volumes
    lease_s: float = 10.0
    tick_s: float = 1.0
    open_runs: int = 8
    health_bind: str = ""
    holder: str
    process: str = field(default_factory=lambda: uuid.uuid4().hex)
    autoscaler: str = "advise"
    most_workers: int = 0
    idle_s: float = 1800.0
    least_workers: int = 1
    installed_workers: int = 0
    max_memory: int = 0
    worker_set: str = ""
    namespace: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read and check the environment."""
        token = environment.get("CEREBRO_TOKEN", "")
        if not token:
            raise ClusterError(
                "CEREBRO_TOKEN is not set: the controller cannot talk to kvs_api without a token"
            )
        return cls(
            server=environment.get("CEREBRO_SERVER", "http://127.0.0.1:7070"),
            token=token,
            volumes=Volumes.from_environment(environment),
            lease_s=real(LEASE_S, environment, 10.0),
            open_runs=integer(OPEN_RUNS, environment, 8),
            health_bind=environment.get("CEREBRO_HEALTH_BIND", ""),
            holder=environment.get("CEREBRO_HOLDER") or socket.gethostname(),
            autoscaler=autoscaler_mode(environment),
            most_workers=integer(MAX_WORKERS, environment, 0),
            idle_s=real(IDLE_S, environment, 1800.0),
            least_workers=integer(LEAST_WORKERS, environment, 1),
            installed_workers=integer(INSTALLED_WORKERS, environment, 0),
            max_memory=max_memory(environment) or 0,
            worker_set=environment.get("CEREBRO_WORKER_SET", ""),
            namespace=environment.get("CEREBRO_NAMESPACE", ""),
        )
