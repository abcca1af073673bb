"""The loop when the cluster scales to zero, and when a run arrives at an empty cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

from cerebro.contract.events import RunPaused, RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Locator, Locators, SizeRequest, WorkerSetStatus
from cerebro.contract.runs import EtlRequest, FitPlan, FitRequest
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from controller.loop import loop
from controller.planning import SpawnedProcess
from controller.scaling.orchestrator import Fleet, Pod
from controller.settings import Settings
from tests.controller.test_loop import Nobody, Store
from tests.controller.test_membership import Manager
from tests.state.stories import SHA


class Obeying(Manager):
    """A cluster manager whose pods exist at once."""

    def scale(self, workers: int) -> None:
        super().scale(workers)
        self.pods = Fleet(pods={f"w-{n}": Pod(uid=f"u{n}") for n in range(workers)}, size=workers)


def run_until(
    is_done: Callable[[], bool], store: Store, manager: Manager, folder: Path, **settings: object
) -> None:
    """Run a controller until a condition holds."""
    run_settings = Settings(
        server="-",
        token="-",
        holder="me",
        tick_s=0.01,
        volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(folder / "volumes")}),
        **settings,  # type: ignore[arg-type]
    )
    controller = loop.Controller(cast(KvsClient, store), run_settings, Nobody(), SpawnedProcess(), manager)
    deadline = threading.Timer(20, controller.stop.set)
    deadline.start()

    def check() -> None:
        threading.Event().wait(0.005)
        if is_done():
            controller.stop.set()

    store.on_idle = check
    controller.run()
    deadline.cancel()
    assert is_done()


def store_with(name: str = "one") -> Store:
    store = Store()
    store.create_experiment(
        ExperimentRecord(name=name, locators=Locators(train=Locator(metadata="train.csv")))
    )
    return store


def test_runs_are_paused_before_the_workers_leave(tmp_path: Path) -> None:
    """The log has the reason, and no data is lost."""
    store, manager = store_with(), Obeying()
    manager.scale(2)
    plan = FitPlan(dataset="d", models={"m00": {"batch_size": 1}}, partitions={0: 1})
    request = FitRequest(code=SHA, models=({"batch_size": 1},), epochs=1, metric="loss", mode="min")
    store.append("one", RunRequested(run="fit-1", request=request))
    store._append("one", RunStarted(run="fit-1", plan=plan))
    store.request_size(SizeRequest(workers=0, by="ann", pause=True))
    run_until(lambda: manager.sizes == [2, 0], store, manager, tmp_path)
    (paused,) = (event for event in store.events("one") if isinstance(event, RunPaused))
    assert "the cluster has scaled to zero" in paused.reason
    assert store.size_request() is None


def test_a_run_scales_the_cluster_up(tmp_path: Path) -> None:
    """If the controller may act, it requests the former number of workers."""
    store, manager = store_with(), Obeying()
    manager.scale(0)
    store.set_worker_set_status(WorkerSetStatus(size_before_zero=3))
    store.append("one", RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)))
    run_until(lambda: manager.sizes == [0, 3], store, manager, tmp_path, autoscaler="act", least_workers=0)


def test_a_controller_that_may_not_act_leaves_the_cluster_at_zero(tmp_path: Path) -> None:
    """Its message names the command."""
    store, manager = store_with(), Obeying()
    manager.scale(0)
    store.append("one", RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)))
    note = "no workers are wanted: `cerebro scale --workers N` has them start"
    run_until(lambda: store.worker_set_status().note == note, store, manager, tmp_path)
    assert manager.sizes == [0]
