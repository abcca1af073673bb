"""A local cluster whose workers come in pairs, as in pods: ``python pods_supervisor.py OPTIONS...``.

Each pair shares a shard volume: ``worker-N`` trains, ``worker-N-etl`` makes partitions. The rest is the ordinary
cluster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cerebro.local import readiness
from cerebro.local.__main__ import main
from cerebro.local.home import ClusterHome
from cerebro.local.services import Plan, Service, services


def build(
    plan: Plan, home: ClusterHome, ports: Mapping[str, int], socket: Path, inherited: Mapping[str, str]
) -> Sequence[Service]:
    """The services of a local cluster, each worker replaced by a pair."""
    listed = []
    for service in services(plan, home, ports, socket, inherited):
        is_worker = "CEREBRO_WORKER" in service.environment
        listed += list(_pair(service, home, ports)) if is_worker else [service]
    return listed


def _pair(worker: Service, home: ClusterHome, ports: Mapping[str, int]) -> Iterator[Service]:
    at = worker.command.index("--handlers")
    for name, container, handler in (
        (worker.name, "worker", "model_hopper"),
        (f"{worker.name}-etl", "etl", "etl_worker"),
    ):
        pod = {
            "CEREBRO_POD": worker.name,
            "CEREBRO_POD_UID": f"uid-of-{worker.name}",
            "CEREBRO_CONTAINER": container,
        }
        if name != worker.name:
            pod["CEREBRO_HEALTH_BIND"] = ""  # the pair has one port between them
        yield replace(
            worker,
            name=name,
            command=(*worker.command[:at], "--handlers", handler),
            environment={**worker.environment, **pod, "CEREBRO_WORKER": name},
            ready=readiness.registered(ports["kvs_api"], home.token(), name),
            live=worker.live if pod.get("CEREBRO_HEALTH_BIND", "own") else None,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], build=build))
