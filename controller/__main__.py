"""Start the controller: wiring only."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time

from cerebro.errors import CerebroError
from cerebro.runtime import health, logs
from cerebro.runtime.kvs import KvsClient
from controller.advisor import ChildHelper
from controller.health import hung
from controller.kubernetes import KubernetesOrchestrator
from controller.leadership import resign
from controller.loop import Controller
from controller.metrics import Metrics
from controller.projection import Projection
from controller.settings import Settings

_COLLECT_AFTER = (100_000, 50, 100)
"""Objects that are new, and so many collections of each of the two younger generations."""

_VOLUMES = ("shared", "checkpoints", "metrics", "logs")
"""Whose room it tells, where they are mounted."""


def main() -> None:
    """Decide until SIGTERM."""
    try:
        settings = Settings.from_environment(os.environ)
        logs.set_up("controller", os.environ, secrets=(settings.token,))
    except CerebroError as error:
        sys.exit(f"controller: {error}")
    kvs = KvsClient(settings.server, settings.token, patience_s=10.0)
    projection = Projection(kvs, settings.volumes)
    orchestrator = KubernetesOrchestrator(settings.access, settings.worker_set) if settings.access else None
    metrics = Metrics()
    metrics.watch(projection, {name: getattr(settings.volumes, name) for name in _VOLUMES})
    controller = Controller(kvs, settings, projection, ChildHelper(), orchestrator, metrics=metrics)
    if settings.health_bind:
        _answer_probes(settings.health_bind, controller, metrics)
    # What a log folds to is millions of objects that stay and form no cycles. Looking through them again and again, as
    # Python does by default, took a quarter of the time that it takes to read a long log.
    gc.set_threshold(*_COLLECT_AFTER)
    signal.signal(signal.SIGTERM, lambda *_: _end(settings))
    projection.start()
    if orchestrator:
        orchestrator.start()
    controller.run()


def _end(settings: Settings) -> None:
    # Nothing needs saving: what this process knows is a fold of the log.
    resign(settings.server, settings.token, settings.holder)
    os._exit(0)


def _answer_probes(bind: str, controller: Controller, metrics: Metrics) -> None:
    def check() -> str:
        return hung(controller.turned, time.monotonic())

    try:
        health.serve(bind, ready=check, live=check, metrics=metrics.exposition)
    except CerebroError as error:
        sys.exit(f"controller: {error}")


if __name__ == "__main__":
    main()
