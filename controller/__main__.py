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
from controller.loop.leadership import fence, resign
from controller.loop.log_keeper import LogKeeper
from controller.loop.loop import Controller
from controller.loop.snapshot_process import SnapshotQuestion, made
from controller.metrics import Metrics
from controller.planning import ChildHelper
from controller.projections.tensorboard import Projection
from controller.scaling.autoscaler.autoscaler import Autoscaler, Rules
from controller.scaling.orchestrator import Orchestrator
from controller.settings import Settings
from controller.storage.measured_bytes import MeasuredBytes
from controller.storage.registered_models import Registering

_COLLECT_AFTER = (100_000, 50, 100)
"""Objects that are new, and so many collections of each of the two younger generations."""

_VOLUMES = ("shared", "checkpoints", "metrics", "logs")
"""Volumes whose free space it measures, where they are mounted."""


HUNG_S = 300.0
"""Longest honest iteration of the loop: cutting a very large metadata table is one. Starting anew sooner would begin it
ever again."""


def main() -> None:
    """Decide until SIGTERM."""
    try:
        settings = Settings.from_environment(os.environ)
        logs.set_up("controller", os.environ, secrets=(settings.token,))
        orchestrator = _watched(settings) if settings.worker_set else None
    except CerebroError as error:
        sys.exit(f"controller: {error}")
    kvs = KvsClient(settings.server, settings.token, retry_for_s=10.0)
    leading = KvsClient(
        settings.server, settings.token, retry_for_s=10.0, write_headers=lambda: fence(controller.newest_term)
    )
    projection = Projection(kvs, settings.volumes, open_runs=settings.open_runs)
    metrics = Metrics()
    metrics.watch(projection, {name: getattr(settings.volumes, name) for name in _VOLUMES})
    rules = Rules(mode=settings.autoscaler, most=settings.most_workers, can_act=orchestrator is not None)
    autoscaler = Autoscaler(ChildHelper(), rules)
    keeper = LogKeeper(
        kvs=kvs,
        make=made,
        leadership=lambda: controller.term,
        is_settled=lambda name, seq: projection.is_settled(name, seq) and controller.is_told(name, seq),
        show=projection.show,
        question=SnapshotQuestion(
            server=settings.server, token=settings.token, experiment="", until=0, least=0, term=0
        ),
    )
    controller = Controller(
        leading,
        settings,
        projection,
        ChildHelper(),
        orchestrator,
        autoscaler=autoscaler,
        metrics=metrics,
        keeper=keeper,
    )
    if settings.health_bind:
        _answer_probes(settings.health_bind, controller, metrics)
    # What a log folds to is millions of objects that stay and form no cycles. Looking through them again and again, as
    # Python does by default, took a quarter of the time that it takes to read a long log.
    gc.set_threshold(*_COLLECT_AFTER)
    signal.signal(signal.SIGTERM, lambda *_: _end(settings))
    projection.start()
    keeper.start()
    Registering(kvs, settings.volumes).start()
    MeasuredBytes(kvs, settings.volumes).start()
    controller.run()


def _watched(settings: Settings) -> Orchestrator:
    # Imported only where there is a cluster to ask: the client takes memory and half a second.
    from controller.kubernetes import KubernetesOrchestrator, in_cluster

    orchestrator = KubernetesOrchestrator(*in_cluster(os.environ, settings.namespace), settings.worker_set)
    orchestrator.start()
    return orchestrator


def _end(settings: Settings) -> None:
    # Nothing needs saving: what this process knows is a fold of the log.
    resign(settings.server, settings.token, settings.holder, settings.process)
    os._exit(0)


def hung(last_iteration: float, now: float) -> str:
    """What is wrong with a loop whose last iteration began at `last_iteration` (seconds, as `now`); empty if nothing
    is, be it leading, a standby, or waiting for a store that is away."""
    still_s = now - last_iteration
    return f"the loop has not turned for {still_s:.0f} s" if still_s > HUNG_S else ""


def _answer_probes(bind: str, controller: Controller, metrics: Metrics) -> None:
    def check() -> str:
        return hung(controller.turned, time.monotonic())

    try:
        health.serve(bind, ready=check, live=check, metrics=metrics.exposition)
    except CerebroError as error:
        sys.exit(f"controller: {error}")


if __name__ == "__main__":
    main()
