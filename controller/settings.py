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
    MOST_WORKERS,
    OPEN_RUNS,
    autoscaler_mode,
    most_memory,
    real,
    whole,
)
from cerebro.runtime.volumes import Volumes


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the controller is told.

    Attributes:
        server: kvs_api's base URL (``CEREBRO_SERVER``, default ``http://127.0.0.1:7070``).
        token: bearer token (``CEREBRO_TOKEN``, required).
        volumes: mounted volumes; the controller writes metadata to `shared` and event files to `metrics`.
        lease_s: a worker silent for longer is lost (``CEREBRO_LEASE_S``). 10 s: five missed reports, so that a slow
            disk or a store that restarts costs nobody a sub-epoch.
        tick_s: longest wait between two looks at the workers. 1 s: the delay it adds to the lease.
        open_runs: so many runs are worked on at once; the others wait in the queue (``CEREBRO_OPEN_RUNS``). 8: each has
            part of the cluster, and the log of each is in memory. 1: one after the other. If there are more when it is
            lowered, they all go on, and no other is begun meanwhile.
        health_bind: host:port that answers whether the loop turns (``CEREBRO_HEALTH_BIND``); off when empty.
        holder: name of this controller in the leadership record (``CEREBRO_HOLDER``, default the host's name, which is
            the pod's in a cluster). A process that starts takes over at once from an earlier one of the same name.
        process: id of this process. The store refuses late requests of an earlier process with the same name.
        autoscaler: what is done about the number of workers: ``off``, ``advise`` or ``act`` (``CEREBRO_AUTOSCALER``).
            ``advise``: forecasts are told, and what another number would change; nobody's money is spent.
        most_workers: that the autoscaler may ask for (``CEREBRO_MOST_WORKERS``); 0: it is not said, and it acts only
            for runs that say how many they may have.
        idle_s: after so long without a run all but `least_workers` are given back, where the autoscaler acts
            (``CEREBRO_IDLE_S``). 1800 s: shorter pauses between runs cost more than they save.
        least_workers: that stay then (``CEREBRO_LEAST_WORKERS``); 0: none.
        installed_workers: the number in the chart's values (``CEREBRO_INSTALLED_WORKERS``), which the controller scales
            a new worker set to, and an old one when the number changes; 0: it is not known.
        most_memory: bytes that the memory limit of a worker's container may be raised to in its pod, where a sub-epoch
            has too little (``CEREBRO_MOST_MEMORY``); 0: it stays as it is.
        worker_set: name of the workers' StatefulSet (``CEREBRO_WORKER_SET``); empty: workers are not Kubernetes pods.
        namespace: of that StatefulSet (``CEREBRO_NAMESPACE``); empty: the pod's own.
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
    most_memory: int = 0
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
            open_runs=whole(OPEN_RUNS, environment, 8),
            health_bind=environment.get("CEREBRO_HEALTH_BIND", ""),
            holder=environment.get("CEREBRO_HOLDER") or socket.gethostname(),
            autoscaler=autoscaler_mode(environment),
            most_workers=whole(MOST_WORKERS, environment, 0),
            idle_s=real(IDLE_S, environment, 1800.0),
            least_workers=whole(LEAST_WORKERS, environment, 1),
            installed_workers=whole(INSTALLED_WORKERS, environment, 0),
            most_memory=most_memory(environment) or 0,
            worker_set=environment.get("CEREBRO_WORKER_SET", ""),
            namespace=environment.get("CEREBRO_NAMESPACE", ""),
        )
