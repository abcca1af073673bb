"""The loop around the core: what goes on while a plan takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from cerebro.contract import api
from cerebro.contract.events import Event, RunRequested, RunStopRequested
from cerebro.contract.records import ExperimentRecord, Locator, Locators, SizeRequest, WorkerRecord
from cerebro.contract.runs import EtlPlan, EtlRequest
from cerebro.contract.tasks import CheckpointRef, TaskResult
from cerebro.errors import IllegalEventError, LocatorError
from cerebro.runtime.kvs import KvsClient
from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState
from controller import loop, plan_maker, preparation
from controller.advisor import ChildHelper
from controller.core import Core
from controller.orchestrator import Fleet
from controller.settings import Settings
from controller.simulation.store import VirtualStore
from tests.state.stories import SHA, Story, unit


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


def test_nothing_waits_for_a_long_planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the metadata of one experiment is cut, a request for workers is handed on and another experiment is planned
    and ended."""
    (tmp_path / "train.csv").write_text("id\nr1\nr2\n")
    store, manager = Store(), Manager()
    locators = Locators(train=Locator(metadata=str(tmp_path / "train.csv"), objects=str(tmp_path)))
    for name in ("one", "two"):
        store.create_experiment(ExperimentRecord(name=name, locators=locators))
        store.append(name, RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)))
    store.register(WorkerRecord(worker="w-0", incarnation="a", weight=1.0, cores=1, kinds=("etl",)))
    settings = Settings(
        server="-",
        token="-",
        holder="me",
        tick_s=0.01,
        volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "volumes")}),
    )
    controller = loop.Controller(cast(KvsClient, store), settings, Nobody(), ChildHelper(), manager)
    go_on = threading.Event()

    def types(name: str) -> list[str]:
        return [event.type for event in store.events(name)]

    def meanwhile() -> None:
        # To ask without a pause would take the processor from those who plan.
        threading.Event().wait(0.01)
        store.request_size(SizeRequest(workers=5))
        if manager.sizes and "RunStarted" in types("two"):
            go_on.set()
        if {"RunStarted", "RunFinished"} & {*types("one")}:
            controller.stop.set()

    def prepare(record: ExperimentRecord, *given: Any) -> EtlPlan:
        if record.name == "one":
            assert go_on.wait(20)
        return preparation.prepare_etl(record, *given)

    store.on_idle = meanwhile
    monkeypatch.setattr(plan_maker, "prepare_etl", prepare)
    controller.run()
    assert "RunStarted" in types("one")


def test_a_plan_of_a_run_that_was_stopped_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun is forgotten when the run is no longer queued, also while others of its experiment are open."""
    (tmp_path / "train.csv").write_text("id\nr1\n")
    store = Store()
    locators = Locators(train=Locator(metadata=str(tmp_path / "train.csv"), objects=str(tmp_path)))
    store.create_experiment(ExperimentRecord(name="one", locators=locators))
    asked = EtlRequest(code=SHA, code_fingerprint=SHA)
    store.append("one", RunRequested(run="etl-1", request=asked))
    store.register(WorkerRecord(worker="w-0", incarnation="a", weight=1.0, cores=1, kinds=("etl",)))
    settings = Settings(
        server="-",
        token="-",
        holder="me",
        tick_s=0.01,
        volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "volumes")}),
    )
    controller = loop.Controller(cast(KvsClient, store), settings, Nobody(), ChildHelper())
    go_on, idles, begun = threading.Event(), [0], list[str]()

    def prepare(*given: Any) -> EtlPlan:
        go_on.wait(20)
        raise LocatorError("nobody wants to know")

    def idle() -> None:
        threading.Event().wait(0.01)
        idles[0] += 1
        if idles[0] == 1:
            store.append("one", RunStopRequested(run="etl-1"))
            store.append("one", RunRequested(run="etl-2", request=asked))
        begun[:] = [ref.run for ref in controller._plans._begun]
        if begun == ["etl-2"] or idles[0] > 100:
            controller.stop.set()

    store.on_idle = idle
    monkeypatch.setattr(plan_maker, "prepare_etl", prepare)
    controller.run()
    go_on.set()
    assert begun == ["etl-2"]


def worked_on(tmp_path: Path) -> tuple[loop.Controller, Core, Story]:
    """A fit run that a controller is about to go on with."""
    settings = Settings(
        server="-",
        token="-",
        holder="me",
        tick_s=0.01,
        volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)}),
    )
    made = loop.Controller(cast(KvsClient, Store()), settings, Nobody(), ChildHelper())
    story = Story()
    story.etl()
    story.fit()
    core = Core(ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="t.csv"))))
    made._reading.apply(core, story.log)
    assert core.fit is not None
    checkpoint = CheckpointRef(name="c", checksum="-", size=1)
    story.do(unit(1, 0), 0, TaskResult(rows=1, metrics={"loss": 0.5}, checkpoint=checkpoint))
    return made, core, story


@pytest.mark.parametrize("where", ["fit_dispatch.FitDispatch", "unit_times.UnitTimes"])
@pytest.mark.parametrize("error", [ZeroDivisionError, IllegalEventError, MemoryError])
def test_an_error_of_the_schedule_is_none_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: type[Exception]
) -> None:
    """The experiment is not quarantined: what is kept beside its state is made anew."""
    made, core, story = worked_on(tmp_path)

    def fails(*given: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"controller.{where}.apply", fails)
        made._reading.apply(core, story.log[core.state.seq :])
    assert core.state == story.state
    fresh = Core(core.record)
    made._reading.apply(fresh, story.log, is_news=False)
    assert core.fit is not None
    assert fresh.fit is not None
    one, other = core.fit.dispatch_state, fresh.fit.dispatch_state
    assert (one.free, one.held, one.epoch, one.open) == (other.free, other.held, other.epoch, other.open)


def test_want_of_memory_is_no_fault_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an event is folded: the experiment is not quarantined, the controller ends and starts again."""
    made, core, story = worked_on(tmp_path)

    def fails(*given: object, **named: object) -> None:
        raise MemoryError

    monkeypatch.setattr("cerebro.state.attempts.commits.commit", fails)
    with pytest.raises(MemoryError):
        made._reading.apply(core, story.log[core.state.seq :])
