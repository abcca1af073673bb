"""The loop around the core during long preparations and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from cerebro.contract.events import Event, RunRequested, RunStopRequested
from cerebro.contract.records import ExperimentRecord, Locator, Locators, SizeRequest, WorkerRecord
from cerebro.contract.rest import api
from cerebro.contract.runs import EtlPlan, EtlRequest
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import IllegalEventError, LocatorError, ServerError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState
from controller.decisions.core import Core
from controller.loop import loop
from controller.planning import SpawnedProcess
from controller.preparation import plan_maker, preparation
from controller.scaling.orchestrator import Fleet, Memory
from controller.settings import Settings
from research.simulation.store import VirtualStore
from tests.controller.preparations import prepared_by
from tests.state.stories import SHA, Story, sub_epoch
from tests.waiting import HANG_S


class Store(VirtualStore):
    """The simulation's store; calls `on_idle` when the controller is idle."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.on_idle: Callable[[], None] = lambda: None

    def watch(self, cursors: Mapping[str, int], cluster: int, wait_s: float) -> api.WatchAnswer:
        """Like `KvsClient`, but never blocks."""
        answer = super().watch(cursors, cluster, wait_s)
        if wait_s and not answer.events and answer.cluster == cluster:
            self.on_idle()
        return answer


class Manager:
    """A cluster manager that records requests."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def fleet(self) -> Fleet | None:
        return None

    def scale(self, workers: int) -> None:
        self.sizes.append(workers)

    def resize(self, pod: str, container: str, memory: Memory) -> None:
        """Fail: these tests request no resize."""
        raise NotImplementedError


class Nobody:
    """A projection without effects."""

    def apply(self, state: ExperimentState, event: Event) -> None:
        """See `Projection`."""

    def is_settled(self, experiment: str, seq: int) -> bool:
        return True

    def begin(self, state: ExperimentState) -> None:
        """See `Projection`."""

    def forget(self, experiment: str) -> None:
        """See `Projection`."""


def test_a_long_preparation_blocks_no_other_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """During one experiment's preparation, a size request is forwarded and another experiment finishes."""
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
    controller = loop.Controller(cast(KvsClient, store), settings, Nobody(), SpawnedProcess(), manager)
    go_on = threading.Event()

    def types(name: str) -> list[str]:
        return [event.type for event in store.events(name)]

    def meanwhile() -> None:
        # A busy loop would take the processor from the preparations.
        threading.Event().wait(0.01)
        store.request_size(SizeRequest(workers=5))
        if manager.sizes and "RunStarted" in types("two"):
            go_on.set()
        if {"RunStarted", "RunFinished"} & {*types("one")}:
            controller.stop.set()

    def prepare(record: ExperimentRecord, *given: Any) -> EtlPlan:
        if record.name == "one":
            assert go_on.wait(HANG_S)
        return preparation.prepare_etl(record, *given)

    store.on_idle = meanwhile
    monkeypatch.setattr(plan_maker, "Preparation", prepared_by(prepare))
    controller.run()
    assert "RunStarted" in types("one")


class Preparing:
    """An experiment with a requested run, and a controller whose preparations wait until they are cancelled."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = Store()
        locators = Locators(train=Locator(metadata=str(folder / "train.csv")))
        self.store.create_experiment(ExperimentRecord(name="one", locators=locators))
        self.request = EtlRequest(code=SHA, code_fingerprint=SHA)
        self.store.append("one", RunRequested(run="etl-1", request=self.request))
        self.store.register(WorkerRecord(worker="w-0", incarnation="a", weight=1.0, cores=1, kinds=("etl",)))
        settings = Settings(
            server="-",
            token="-",
            holder="me",
            tick_s=0.01,
            volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(folder / "volumes")}),
        )
        self.controller = loop.Controller(cast(KvsClient, self.store), settings, Nobody(), SpawnedProcess())
        self.ended, self._go_on = list[list[str]](), threading.Event()
        """For each cancelled preparation, the other started ones."""
        monkeypatch.setattr(plan_maker, "Preparation", prepared_by(self._prepare, self._end))

    def _prepare(self, *given: Any) -> EtlPlan:
        self._go_on.wait(HANG_S)
        raise LocatorError("nobody wants to know")

    def _end(self) -> None:
        self.ended.append(self.begun)
        self._go_on.set()

    @property
    def begun(self) -> list[str]:
        return [ref.run for ref in self.controller._plans._begun]

    def run(self, idle: Callable[[int], object]) -> None:
        """Call `idle` with 1, 2, ... whenever the controller is idle, until it returns True."""
        idles = [0]

        def on_idle() -> None:
            threading.Event().wait(0.01)
            idles[0] += 1
            if idle(idles[0]) or idles[0] > 100:
                self.controller.stop.set()

        self.store.on_idle = on_idle
        self.controller.run()


@pytest.fixture
def running_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preparing:
    return Preparing(tmp_path, monkeypatch)


def test_the_preparation_of_a_stopped_run_is_cancelled(running_preparation: Preparing) -> None:
    """It is cancelled once the run is not queued, before the next preparation starts."""

    def idle(number: int) -> bool:
        if number == 1:
            assert running_preparation.begun == ["etl-1"]
            running_preparation.store.append("one", RunStopRequested(run="etl-1"))
            running_preparation.store.append(
                "one", RunRequested(run="etl-2", request=running_preparation.request)
            )
        return running_preparation.begun == ["etl-2"]

    running_preparation.run(idle)
    assert running_preparation.ended[0] == []
    assert running_preparation.begun == []


def test_the_controller_survives_store_errors(
    running_preparation: Preparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop pauses after each error and continues."""
    queued, failures, waits = running_preparation.store.queued, iter(range(3)), list[float | None]()

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(0.0)

    def failing() -> Any:
        if next(failures, None) is not None:
            raise ServerError("boom")
        return queued()

    def idle(number: int) -> bool:
        assert waits[:3] == [0.01] * 3
        return running_preparation.begun == ["etl-1"]

    running_preparation.controller.stop = Stop()
    monkeypatch.setattr(running_preparation.store, "queued", failing)
    running_preparation.run(idle)
    assert len(running_preparation.ended) == 1


def test_losing_leadership_cancels_preparations(
    running_preparation: Preparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader prepares again."""

    def idle(number: int) -> None:
        if number == 1:
            assert running_preparation.begun == ["etl-1"]
            monkeypatch.setattr(running_preparation.store, "lead", lost)
            running_preparation.controller.leadership.doubt()

    def lost(*given: Any, **named: Any) -> api.LeaderAnswer:
        if running_preparation.ended:
            running_preparation.controller.stop.set()
        running_preparation.store.on_idle()
        return api.LeaderAnswer(term=0, holder="another")

    running_preparation.run(idle)
    assert running_preparation.ended == [[]]
    assert running_preparation.controller.stop.is_set()


def worked_on(tmp_path: Path) -> tuple[loop.Controller, Core, Story]:
    """A fit run that a controller is about to continue."""
    settings = Settings(
        server="-",
        token="-",
        holder="me",
        tick_s=0.01,
        volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)}),
    )
    controller = loop.Controller(cast(KvsClient, Store()), settings, Nobody(), SpawnedProcess())
    story = Story()
    story.etl()
    story.fit()
    core = Core(ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="t.csv"))))
    controller._reading.apply(core, story.log)
    assert core.fit is not None
    checkpoint = CheckpointRef(name="c", checksum="-", size=1)
    story.do(sub_epoch(1, 0), 0, TaskResult(rows=1, metrics={"loss": 0.5}, checkpoint=checkpoint))
    return controller, core, story


@pytest.mark.parametrize(
    "where", ["decisions.fit_dispatch.FitDispatch", "projections.sub_epoch_times.SubEpochTimes"]
)
@pytest.mark.parametrize("error", [ZeroDivisionError, IllegalEventError, MemoryError])
def test_an_error_in_derived_data_does_not_quarantine_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: type[Exception]
) -> None:
    """Derived data is rebuilt, and the experiment is not quarantined."""
    controller, core, story = worked_on(tmp_path)

    def fails(*given: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"controller.{where}.apply", fails)
        controller._reading.apply(core, story.log[core.state.seq :])
    assert core.state == story.state
    fresh = Core(core.record)
    controller._reading.apply(fresh, story.log, is_news=False)
    assert core.fit is not None
    assert fresh.fit is not None
    one, other = core.fit.dispatch_state, fresh.fit.dispatch_state
    assert (one.free, one.holders.held, one.epoch, one.open) == (
        other.free,
        other.holders.held,
        other.epoch,
        other.open,
    )


def test_a_memory_error_does_not_quarantine_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller exits and restarts; the experiment is not quarantined."""
    controller, core, story = worked_on(tmp_path)

    def fails(*given: object, **named: object) -> None:
        raise MemoryError

    monkeypatch.setattr("cerebro.state.tasks.attempt_events.commit_events.commit", fails)
    with pytest.raises(MemoryError):
        controller._reading.apply(core, story.log[core.state.seq :])
