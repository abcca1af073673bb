"""Start a worker: wiring only.

The local supervisor or a pod runs ``python -m cerebro.worker.agent --handlers etl_worker cerebro.worker.searches
model_hopper trial_runner``, which serves all kinds of tasks in one process, as on one machine. In a cluster, one
container runs the first two handlers, another the rest. The process ends after SIGTERM, or if it cannot report a task
for ten minutes.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import socket
import sys
from contextlib import suppress

from cerebro.contract.records import Replica
from cerebro.errors import CerebroError
from cerebro.runtime import logs
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.usage import cores
from cerebro.runtime.usage.gpus import Gpus
from cerebro.runtime.usage.memory import own_group
from cerebro.runtime.usage.meter import UsageMeter
from cerebro.runtime.volumes import Volumes
from cerebro.runtime.web import health
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.agent.gangs.endpoint import GangEndpoint
from cerebro.worker.agent.loop import Agent
from cerebro.worker.agent.processes import process_hardening
from cerebro.worker.agent.reports import Resources
from cerebro.worker.agent.settings import Settings
from cerebro.worker.child import sandbox
from cerebro.worker.upkeep.metrics import Metrics


def main() -> None:
    """Run the worker until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m cerebro.worker.agent")
    parser.add_argument(
        "--handlers", nargs="+", required=True, help="packages with KINDS and HANDLER, perhaps OTHER_HANDLERS"
    )
    arguments = parser.parse_args()
    try:
        settings = Settings.from_environment(os.environ)
        logs.set_up("worker", os.environ, secrets=(settings.token,), worker=settings.worker)
        process_hardening.forget_secrets(os.environ)
        if settings.sandbox.is_on:
            sandbox.check(settings.volumes, settings.sandbox.writable_folders)
        if settings.pod is not None:
            process_hardening.hide_process()
        gpus = Gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
        devices = WorkerDevices(settings.cores, settings.devices, gpus.found, settings.device_memory)
        endpoint = None
        if settings.gangs.address:
            endpoint = GangEndpoint(settings.gangs.address, settings.gangs.port, settings.token)
    except CerebroError as error:
        sys.exit(f"worker: {error}")
    handlers: dict[str, str] = {}
    for name in arguments.handlers:
        package = importlib.import_module(name)
        handlers |= dict.fromkeys(package.KINDS, package.HANDLER) | getattr(package, "OTHER_HANDLERS", {})
    with suppress(OSError):  # if it fails, the first task reports it
        settings.volumes.shards.mkdir(parents=True, exist_ok=True)
    resources = Resources(
        devices=devices,
        replicas=lambda: replicas(settings.volumes),
        meter=UsageMeter(
            cores=settings.cores,
            shards=settings.volumes.shards,
            gpus=gpus,
            is_container=settings.pod is not None,
        ),
        host=settings.node or socket.gethostname(),
        # A pod's core limit is its own; pods share their node's cores. A local cluster's limit covers all its
        # workers.
        machine_cores=cores.of_machine() if settings.pod else cores.available(),
        pid=os.getpid(),
        memory_bytes=own_group().usable_bytes(),
        address=endpoint.address if endpoint else "",
    )
    metrics = Metrics({name: getattr(settings.volumes, name) for name in ("shards", "checkpoints")})
    # If the store is away for more than ten minutes, restart.
    kvs = KvsClient(settings.server, settings.token, retry_for_s=600)
    agent = Agent(kvs, settings, handlers, resources, metrics, endpoint=endpoint)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _: agent.stop(signal.Signals(signum).name))
    # Python runs handlers between two bytecodes of the main thread. A signal that another thread receives, or that
    # arrives just before the main thread's system call, does not interrupt that call.
    signal.set_wakeup_fd(agent.wake_descriptor, warn_on_full_buffer=False)
    if settings.health_bind:
        try:
            health.serve(
                settings.health_bind, ready=agent.unready, live=agent.unwell, metrics=metrics.exposition
            )
        except CerebroError as error:
            sys.exit(f"worker: {error}")
    agent.run()
    # The remaining threads are daemons that wait on the store; skip their cleanup.
    os._exit(0)


def replicas(volumes: Volumes) -> tuple[Replica, ...]:
    """List the complete training partitions found on the worker's volume."""
    root = volumes.shards / "datasets"
    if not root.is_dir():
        return ()
    from cerebro.data.partitions import find_partitions  # imports NumPy; 6 MB that an unused worker saves

    found = find_partitions(root)
    return tuple(Replica(dataset=p.dataset, partition=p.partition) for p in found if p.split == "train")


if __name__ == "__main__":
    main()
