"""Start the controller: wiring only."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time

from cerebro import health
from cerebro.errors import CerebroError
from cerebro.kvs import KvsClient
from controller.advisor import ChildHelper
from controller.health import hung
from controller.kubernetes import KubernetesOrchestrator
from controller.leadership import resign
from controller.loop import Controller
from controller.projection import Projection
from controller.settings import Settings


def main() -> None:
    """Decide until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = Settings.from_environment(os.environ)
    except CerebroError as error:
        sys.exit(f"controller: {error}")
    kvs = KvsClient(settings.server, settings.token, patience_s=10.0)
    projection = Projection(kvs, settings.volumes)
    orchestrator = KubernetesOrchestrator(settings.access, settings.worker_set) if settings.access else None
    controller = Controller(kvs, settings, projection, ChildHelper(), orchestrator)
    if settings.health_bind:
        _answer_probes(settings.health_bind, controller)
    signal.signal(signal.SIGTERM, lambda *_: _end(settings))
    projection.start()
    if orchestrator:
        orchestrator.start()
    controller.run()


def _end(settings: Settings) -> None:
    # Nothing needs saving: what this process knows is a fold of the log.
    resign(settings.server, settings.token, settings.holder)
    os._exit(0)


def _answer_probes(bind: str, controller: Controller) -> None:
    def check() -> str:
        return hung(controller.turned, time.monotonic())

    try:
        health.serve(bind, ready=check, live=check)
    except CerebroError as error:
        sys.exit(f"controller: {error}")


if __name__ == "__main__":
    main()
