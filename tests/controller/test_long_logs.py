"""The loop with a long log: it keeps leading while it reads, reads each event once, and holds a bounded number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from cerebro.contract.events import Event, RunFinished, RunRequested, RunStarted, RunStopRequested
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.rest import api
from cerebro.contract.runs import EtlPlan, EtlRequest
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from controller.loop import admission, leadership, log_follower, loop
from controller.loop.fold_cache import FoldCache
from controller.loop.leadership import LEASE_S
from controller.planning import SpawnedProcess
from controller.settings import Settings
from tests.clocks import set_monotonic
from tests.controller.test_loop import Nobody, Store
from tests.state.stories import SHA


def record(name: str, created: float = 0.0) -> ExperimentRecord:
    return ExperimentRecord(name=name, locators=Locators(train=Locator(metadata="t.csv")), created=created)


def request(run: str) -> RunRequested:
    return RunRequested(run=run, request=EtlRequest(code=SHA, code_fingerprint=SHA))


class Paged(Store):
    """A store with pages of one event, so that a short log behaves like a long one. It records requests."""

    def __init__(self, names: Sequence[str] = ("one",)) -> None:
        super().__init__()
        self.reads: list[tuple[str, int]] = []
        self.leads: list[float] = []
        self.takes: Callable[[], None] = lambda: None
        self.now: Callable[[], float] = lambda: 0.0
        self.rival_after = 10**9
        for name in names:
            self.create_experiment(record(name))

    def events(self, experiment: str, after: int = 0, *, wait_s: float = 0.0) -> tuple[Event, ...]:
        self.reads.append((experiment, after))
        self.takes()
        return super().events(experiment, after)[:1]

    def lead(
        self,
        holder: str,
        ttl_s: float,
        *,
        process: str = "",
        is_start: bool = False,
        open_runs: int = 1,
        attended: api.Attended | None = None,
    ) -> api.LeaderAnswer:
        """Lose the leadership to a rival after some calls."""
        self.leads.append(self.now())
        if len(self.leads) > self.rival_after:
            return api.LeaderAnswer(term=0, holder="rival")
        return super().lead(holder, ttl_s, process=process, is_start=is_start)

    def write_log(self, experiment: str, number: int) -> None:
        """Write a log of ended runs."""
        term = super().lead("before", 0.0).term
        for run in range(number):
            name = f"etl-{run}"
            self.append(experiment, request(name))
            plan = EtlPlan(dataset="d", splits={})
            events = (RunStarted(run=name, plan=plan), RunFinished(run=name, outcome="finished"))
            for event in events:
                step = api.Note(event=event)
                self.decide(experiment, api.DecideRequest(term=term, after=api.MAX_SEQ, steps=(step,)))


def controller(store: Store, tmp_path: Path) -> loop.Controller:
    settings = Settings(
        server="-",
        token="-",
        holder="me",
        tick_s=0.01,
        volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "volumes")}),
    )
    controller = loop.Controller(cast(KvsClient, store), settings, Nobody(), SpawnedProcess())
    store.on_idle = controller.stop.set
    return controller


def test_the_leadership_lease_is_renewed_while_a_long_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page takes a second and the log a hundred; renewals are never a lease apart."""
    clock, store = [0.0], Paged()
    store.write_log("one", 33)
    store.append("one", request("etl-99"))
    store.now = lambda: clock[0]

    def take() -> None:
        clock[0] += 1.0

    store.takes = take
    set_monotonic(monkeypatch, store.now, loop, leadership, log_follower, admission)
    controller(store, tmp_path).run()
    assert clock[0] > 90
    gaps = [after - before for before, after in zip(store.leads, store.leads[1:], strict=False)]
    assert max([*gaps, clock[0] - store.leads[-1]]) < LEASE_S


def test_a_controller_that_loses_leadership_stops_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events read so far are kept in case the leadership returns."""
    clock, store = [0.0], Paged()
    store.write_log("one", 10)
    store.append("one", request("etl-99"))
    store.now, store.rival_after = lambda: clock[0], 3

    def take() -> None:
        clock[0] += 1.0

    store.takes = take
    set_monotonic(monkeypatch, store.now, loop, leadership, log_follower, admission)
    leader = controller(store, tmp_path)
    wait = leader.stop.wait

    def stand_by(timeout: float | None = None) -> bool:
        if len(store.leads) > 6:  # it waits some turns, then leads again
            store.rival_after = 10**9
        clock[0] += 1.0
        return wait(0.0)

    monkeypatch.setattr(leader.stop, "wait", stand_by)
    leader.run()
    firsts = [after for _, after in store.reads]
    assert firsts.count(0) == 1
    assert max(firsts) >= 30


def test_a_log_is_read_once_for_all_runs(tmp_path: Path) -> None:
    """A second run continues where the first one stopped, even after another experiment's turn."""
    store = Paged(("one", "two"))
    store.write_log("one", 5)
    leader = controller(store, tmp_path)

    def stop() -> None:
        # No worker exists, so each run ends by a stop command.
        if store.queue():
            store.append(store.queue()[0].experiment, RunStopRequested(run=store.queue()[0].run))
        else:
            leader.stop.set()

    store.on_idle = stop
    for number, name in enumerate(("one", "two", "one"), start=10):
        leader.stop.clear()
        store.append(name, request(f"etl-{number}"))
        leader.run()
    assert [name for name, after in store.reads if not after] == ["one", "two"]


# --- Cache ---


def filled(kept: FoldCache, of: ExperimentRecord, events: int) -> None:
    core = kept.take(of)
    for number in range(core.state.seq, events):
        core.apply(request(f"etl-{number}"))
    kept.keep(core)


def known(kept: FoldCache, of: ExperimentRecord) -> int:
    core = kept.take(of)
    kept.keep(core)
    return core.state.seq


def test_the_number_of_cached_events_is_bounded() -> None:
    """The least recently used experiments are evicted first."""
    kept = FoldCache(max_events=10)
    for name in ("one", "two", "three"):
        filled(kept, record(name), 4)
    assert [known(kept, record(name)) for name in ("three", "two", "one")] == [4, 4, 0]
