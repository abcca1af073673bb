"""A local cluster with worker pairs, as in pods.

Run it as ``python pods_supervisor.py OPTIONS...``. The workers of a pair share a shard volume: ``worker-N`` trains,
``worker-N-etl`` preprocesses and runs search procedures. The controller cannot import SciPy or torch, as in its image.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from cerebro.local.__main__ import main
from cerebro.local.home import ClusterHome
from cerebro.local.supervision import liveness, readiness
from cerebro.local.supervision.ports import HOST, Port, reserve
from cerebro.local.supervision.services import Service, ServiceOptions, health_port, services


def build(
    options: ServiceOptions,
    home: ClusterHome,
    ports: Mapping[str, int],
    database: Path,
    inherited: Mapping[str, str],
) -> Sequence[Service]:
    """Build the services of a local cluster with a pair instead of each worker."""
    listed = []
    for service in services(options, home, ports, database, inherited):
        is_worker = "CEREBRO_WORKER" in service.environment
        listed += list(_pair(service, ports)) if is_worker else [service]
    return [replace(each, command=_CONTROLLER) if each.name == "controller" else each for each in listed]


_CONTROLLER = (
    sys.executable,
    "-P",
    "-c",
    "import runpy, sys\n"
    "sys.modules.update(dict.fromkeys(['scipy', 'torch']))\n"
    "runpy.run_module('controller', run_name='__main__', alter_sys=True)",
)


def _pair(worker: Service, ports: Mapping[str, int]) -> Iterator[Service]:
    at = worker.command.index("--handlers")
    for name, container, handlers in (
        (worker.name, "worker", ["model_hopper", "trial_runner"]),
        (f"{worker.name}-etl", "etl", ["etl_worker", "cerebro.worker.searches"]),
    ):
        pod = {
            "CEREBRO_POD": worker.name,
            "CEREBRO_POD_UID": f"uid-of-{worker.name}",
            "CEREBRO_CONTAINER": container,
        }
        port = ports[health_port(name)] if name == worker.name else _port(name).number
        yield replace(
            worker,
            name=name,
            command=(*worker.command[:at], "--handlers", *handlers),
            environment={
                **worker.environment,
                **pod,
                "CEREBRO_WORKER": name,
                "CEREBRO_HEALTH_BIND": f"{HOST}:{port}",
            },
            ready=readiness.http(port),
            live=liveness.http(port),
        )


@cache
def _port(name: str) -> Port:
    """Reserve one port per name, so a worker keeps its port over restarts."""
    return reserve([name], previous={}, seed=f"{os.getpid():08x}")[name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], build=build))
