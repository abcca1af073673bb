"""Start a worker: wiring only.

``python -m cerebro.agent --handlers etl_worker model_hopper`` hosts both kinds in one process, as on one machine; in a
cluster each container hosts one.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import socket
import subprocess
import sys

from cerebro import health
from cerebro.agent import secrecy
from cerebro.agent.loop import Agent
from cerebro.agent.reports import Resources
from cerebro.agent.settings import Settings
from cerebro.contract.records import Holding
from cerebro.data.partitions import find_partitions
from cerebro.errors import CerebroError
from cerebro.kvs import KvsClient
from cerebro.volumes import Volumes


def main() -> None:
    """Work until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    parser = argparse.ArgumentParser(prog="python -m cerebro.agent")
    parser.add_argument("--handlers", nargs="+", required=True, help="packages with KINDS and HANDLER")
    arguments = parser.parse_args()
    try:
        settings = Settings.from_environment(os.environ)
        secrecy.forget_secrets(os.environ)
        if settings.pod is not None:
            secrecy.hide_process()
    except CerebroError as error:
        sys.exit(f"worker: {error}")
    handlers: dict[str, str] = {}
    for name in arguments.handlers:
        package = importlib.import_module(name)
        handlers |= dict.fromkeys(package.KINDS, package.HANDLER)
    resources = Resources(
        gpus=visible_gpus(),
        holdings=lambda: holdings(settings.volumes),
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    # Ten minutes of patience: a store that is away longer is a reason to start over.
    agent = Agent(KvsClient(settings.server, settings.token, patience_s=600), settings, handlers, resources)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _: agent.stop(signal.Signals(signum).name))
    if settings.health_bind:
        try:
            health.serve(settings.health_bind, ready=agent.unready, live=agent.unwell)
        except CerebroError as error:
            sys.exit(f"worker: {error}")
    agent.run()
    # The threads that wait on the store are daemons: nothing is left to be done.
    os._exit(0)


def holdings(volumes: Volumes) -> tuple[Holding, ...]:
    """Complete training partitions on the worker's own volume: discovered, not assumed from its name."""
    found = find_partitions(volumes.shards / "datasets")
    return tuple(Holding(dataset=p.dataset, partition=p.partition) for p in found if p.split == "train")


def visible_gpus() -> tuple[str, ...]:
    """Names of the GPUs this worker may use, asked of the driver so that the agent needs no torch."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    names = (
        tuple(line.strip() for line in done.stdout.splitlines() if line.strip())
        if done.returncode == 0
        else ()
    )
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return names
    return tuple(names[int(i)] for i in allowed.split(",") if i.strip().isdigit() and int(i) < len(names))


if __name__ == "__main__":
    main()
