"""The loop around the core: what goes on while a plan takes long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from cerebro.contract import api
from cerebro.contract.events import Event, RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Locator, Locators, SizeRequest, WorkerRecord
from cerebro.contract.runs import EtlPlan, EtlRequest
from cerebro.kvs import KvsClient
from cerebro.state import ExperimentState
from cerebro.volumes import Volumes
from controller import loop, preparation_process
from controller.advisor import ChildHelper
from controller.orchestrator import Fleet
from controller.settings import Settings
from controller.simulation.store import VirtualStore
from tests.state.stories import SHA


class Store(VirtualStore):
    """The simulation's store, which calls `on_idle` when the controller has nothing left to do."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.on_idle: Callable[[], None] = lambda: None

    def watch(self, cursors: Mapping[str, int], cluster: int, wait_s: float) -> api.WatchAnswer:
        """See `KvsClient`; never blocks."""
        answer = super().watch(cursors, cluster, wait_s)
        if wait_s and not answer.events and answer.cluster == cluster:
            self.on_idle()
        return answer


class Manager:
    """A cluster manager that notes what it is told."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def fleet(self) -> Fleet | None:
        """See `Orchestrator`."""
        return None

    def scale(self, workers: int) -> None:
        """See `Orchestrator`."""
        self.sizes.append(workers)


class Nobody:
    """Looks at nothing."""

    def observe(self, state: ExperimentState, event: Event) -> None:
        """See `Observer`."""

    def forget(self, experiment: str) -> None:
        """See `Observer`."""


def test_a_wish_for_workers_does_not_wait_for_a_long_planning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made while the metadata is cut, it is handed on before that is done."""
    (tmp_path / "train.csv").write_text("id\nr1\nr2\n")
    store, manager = Store(), Manager()
    locators = Locators(train=Locator(metadata=str(tmp_path / "train.csv"), objects=str(tmp_path)))
    store.create_experiment(ExperimentRecord(name="one", locators=locators))
    store.append("one", RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)))
    store.register(WorkerRecord(worker="w-0", incarnation="a", weight=1.0, cores=1, kinds=("etl",)))
    settings = Settings(
        server="-",
        token="-",
        holder="me",
        tick_s=0.01,
        volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "volumes")}),
    )
    controller = loop.Controller(cast(KvsClient, store), settings, Nobody(), ChildHelper(), manager)
    store.on_idle = controller.stop.set
    told_meanwhile: list[int] = []

    def with_a_wish(*given: Any, **named: Any) -> EtlPlan:
        store.ask_size(SizeRequest(workers=5))
        plan = preparation_process.prepare_etl(*given, **named)
        told_meanwhile.extend(manager.sizes)
        return plan

    monkeypatch.setattr(preparation_process, "_PACE_S", 0.01)
    monkeypatch.setattr(loop, "prepare_etl", with_a_wish)
    controller.run()
    assert told_meanwhile == [5]
    assert any(isinstance(event, RunStarted) for event in store.events("one"))
