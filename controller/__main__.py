"""Start the controller: wiring only."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time

from cerebro.errors import CerebroError
from cerebro.runtime import logs
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.web import health
from controller.loop.leadership import fence, resign
from controller.loop.log_keeper import LogKeeper
from controller.loop.loop import Controller
from controller.loop.snapshot_process import SnapshotQuestion, make_snapshot
from controller.metrics import Metrics
from controller.notifications.supervision import NotificationProcess
from controller.planning import SpawnedProcess
from controller.projections.tensorboard import TensorBoardFiles
from controller.scaling.autoscaler.autoscaler import Autoscaler, Rules
from controller.scaling.orchestrator import Orchestrator
from controller.settings import Settings
from controller.storage.measured_bytes import MeasuredBytes
from controller.storage.registered_models import Registering

_COLLECT_AFTER = (100_000, 50, 100)
"""New objects before a collection, and collections of each younger generation."""

_VOLUMES = ("shared", "checkpoints", "metrics", "logs")
"""Volumes with a measured free space, if mounted."""


HUNG_S = 300.0
"""Maximum seconds of a turn of the loop, such as cutting a very large table. An earlier restart would repeat
it forever.
"""


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
        settings.server,
        settings.token,
        retry_for_s=10.0,
        write_headers=lambda: fence(controller.leadership.newest_term),
    )
    projection = TensorBoardFiles(kvs, settings.volumes, open_runs=settings.open_runs)
    metrics = Metrics()
    metrics.watch(projection, {name: getattr(settings.volumes, name) for name in _VOLUMES})
    rules = Rules(mode=settings.autoscaler, most=settings.most_workers, can_act=orchestrator is not None)
    autoscaler = Autoscaler(SpawnedProcess(), rules)
    keeper = LogKeeper(
        kvs=kvs,
        make=make_snapshot,
        leadership=lambda: controller.leadership.term,
        is_settled=lambda name, seq: controller.projections.is_settled(name, seq),  # noqa: PLW0108 - created below
        show=projection.show,
        question=SnapshotQuestion(
            server=settings.server, token=settings.token, experiment="", until=0, least=0, term=0
        ),
    )
    controller = Controller(
        leading,
        settings,
        projection,
        SpawnedProcess(),
        orchestrator,
        autoscaler=autoscaler,
        metrics=metrics,
        keeper=keeper,
    )
    if settings.health_bind:
        _answer_probes(settings.health_bind, controller, metrics)
    # A fold has millions of permanent objects without cycles. Python's default collections took a quarter of
    # the time to read a long log.
    gc.set_threshold(*_COLLECT_AFTER)
    signal.signal(signal.SIGTERM, lambda *_: _end(settings))
    projection.start()
    keeper.start()
    Registering(kvs, settings.volumes).start()
    MeasuredBytes(kvs, settings.volumes).start()
    NotificationProcess(kvs, lambda: controller.leadership.term).start()
    controller.run()


def _watched(settings: Settings) -> Orchestrator:
    # Imported only with a cluster: the client takes memory and half a second.
    from controller.kubernetes import KubernetesOrchestrator, in_cluster

    orchestrator = KubernetesOrchestrator(*in_cluster(os.environ, settings.namespace), settings.worker_set)
    orchestrator.start()
    return orchestrator


def _end(settings: Settings) -> None:
    # Nothing to save: the state of this process is a fold of the log.
    resign(settings.server, settings.token, settings.holder, settings.process)
    os._exit(0)


def hung(last_iteration: float, now: float) -> str:
    """Return an error if the loop has not turned since `last_iteration`, else "".

    The loop turns while it leads, stands by, or waits for the store.
    """
    still_s = now - last_iteration
    return f"the loop has not turned for {still_s:.0f} s" if still_s > HUNG_S else ""


def _answer_probes(bind: str, controller: Controller, metrics: Metrics) -> None:
    def check() -> str:
        return hung(controller.leadership.turned, time.monotonic())

    try:
        health.serve(bind, ready=check, live=check, metrics=metrics.exposition)
    except CerebroError as error:
        sys.exit(f"controller: {error}")


if __name__ == "__main__":
    main()
