"""The run history: sub-epoch statistics are stored exactly once and used by new runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import Event, RunStarted
from cerebro.contract.records import CodeRecord, Hyperparameters
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.stored.history import (
    History,
    HistoryAnswer,
    HistoryRequest,
    SubEpochHistory,
    SubEpochKey,
)
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.trials import DeviceKind
from cerebro.errors import BadRequestError, NotFoundError, StoreUnavailableError
from cerebro.state import ExperimentState
from cerebro.state.absences import Absences
from controller.decisions.core import Core
from controller.projections.history import RunHistory
from controller.projections.priors import Priors
from controller.scaling.autoscaler.outlook import outlook, trainers
from research.simulation.cluster import Simulation
from research.simulation.history import history_of
from research.simulation.scenario import DATASET, EXPERIMENT, Scenario
from research.simulation.store import VirtualStore

MODELS, PARTITIONS, ROWS = 5, 4, 1000
CODE = "0" * 64
FAST, SLOW = (DeviceKind(kind="gpu", name=name) for name in ("fast", "slow"))


def cost(model: str) -> float:
    return 2.0 ** int(model[1:])


def sub_epoch_time(body: TaskBody, worker: str) -> float:
    assert isinstance(body, TrainTask)
    noise = Random(f"{body.model} {body.epoch} {body.partition}").lognormvariate(0, 0.05)
    return 10 * cost(body.model) * noise


def simulation(history: dict[str, SubEpochHistory] | None = None, *, models: int = MODELS) -> Simulation:
    hyperparams: dict[str, Hyperparameters] = {f"m{n}": {"batch_size": 1, "n": n} for n in range(models)}
    request = FitRequest(
        code=CODE,
        models=tuple(hyperparams.values()),
        epochs=2,
        metric="loss",
        mode="min",
        planner=False,
    )
    plan = FitPlan(dataset=DATASET, models=hyperparams, partitions=dict.fromkeys(range(PARTITIONS), ROWS))
    scenario = Scenario(
        replicas={f"w{n}": [n] for n in range(PARTITIONS)},
        sub_epoch_time=sub_epoch_time,
        fixed_s=lambda body, worker: 1.0,
        lease_s=1e4,
        history=history,
    )
    return Simulation(scenario, request, RunStarted(run="fit-1", plan=plan))


@pytest.fixture(scope="module")
def log() -> tuple[Event, ...]:
    sim = simulation()
    sim.run()
    return sim.log


# --- Stored statistics ---


@dataclass
class Store:
    """A store with a history that may fail."""

    inner: VirtualStore = field(default_factory=lambda: VirtualStore(lambda: 0.0))
    is_away: bool = False
    is_lost: bool = False
    """True if answers get lost after the request was executed."""
    error: Exception | None = None
    requests: list[HistoryRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inner.create_experiment(simulation().store.experiment(EXPERIMENT))
        self.term = self.inner.lead("c", 1e9).term

    def history(self) -> History:
        if self.error:
            raise self.error
        return self.inner.history()

    def count_history(self, request: HistoryRequest) -> HistoryAnswer:
        if self.error:
            raise self.error
        if self.is_away:
            raise StoreUnavailableError("away")
        self.requests.append(request)
        answer = self.inner.count_history(request)
        if self.is_lost:
            raise StoreUnavailableError("no answer")
        return answer

    def code(self, sha256: str) -> CodeRecord:
        return self.inner.code(sha256)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Controller:
    """A fold of the log with its history projection."""

    def __init__(self, store: Store) -> None:
        self.store, self.clock = store, Clock()
        self.history = RunHistory(store, self.clock)
        self.state = ExperimentState(name=EXPERIMENT)
        self.history.open(EXPERIMENT, store.term)

    def read(self, events: tuple[Event, ...]) -> None:
        for event in events:
            self.state.apply(event)
            self.history.apply(self.state, event)

    def reconcile(self) -> None:
        self.clock.now += 60.0
        self.history.reconcile(self.store.term)


def assert_counted_once(store: Store, log: tuple[Event, ...]) -> None:
    """Check that the history equals that of a single controller."""
    expected, found = history_of(log), store.inner.history().sub_epochs
    assert {key: round(row.sub_epochs) for key, row in found.items()} == {
        key: round(row.sub_epochs) for key, row in expected.items()
    }
    for key, row in expected.items():
        assert math.isclose(found[key].log_rate, row.log_rate, abs_tol=1e-9)
        assert math.isclose(found[key].variance, row.variance, abs_tol=1e-9)
        assert math.isclose(found[key].fixed_s, row.fixed_s)


_ACTS = st.sampled_from(["read", "reconcile", "restart", "other reconciles", "answer lost", "away"])


@settings(max_examples=60, deadline=None)
@given(acts=st.lists(st.tuples(_ACTS, st.integers(1, 40)), max_size=14))
def test_each_sub_epoch_is_counted_once(log: tuple[Event, ...], acts: list[tuple[str, int]]) -> None:
    """Controllers crash, alternate as leaders, or lose answers."""
    store = Store()
    mine, other = Controller(store), Controller(store)
    for act, number in acts:
        store.is_lost, store.is_away = act == "answer lost", act == "away"
        try:
            if act == "read":
                mine.read(log[mine.state.seq : mine.state.seq + number])
            elif act == "restart":
                mine = Controller(store)
            elif act == "other reconciles":
                other.read(log[other.state.seq : other.state.seq + number])
                other.reconcile()
            else:
                mine.reconcile()
        except StoreUnavailableError:
            pass
    store.is_lost = store.is_away = False
    mine.read(log[mine.state.seq :])
    for _ in range(3):  # the first request finds the other controller's statistics
        mine.reconcile()
    assert_counted_once(store, log)


def test_many_sub_epochs_are_stored_in_several_requests(
    log: tuple[Event, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read of a long log exceeds the limit of one request."""
    monkeypatch.setattr("controller.projections.history._AT_ONCE", 7)
    store = Store()
    controller = Controller(store)
    controller.read(log)
    for _ in range(MODELS * PARTITIONS * 2):
        controller.reconcile()
    assert max(sum(row.sub_epochs for row in each.sub_epochs.values()) for each in store.requests) <= 7
    assert_counted_once(store, log)


@pytest.mark.parametrize("error", [NotFoundError("no route"), BadRequestError("what?")])
def test_runs_start_without_a_stored_history(log: tuple[Event, ...], error: Exception) -> None:
    """New runs start without a history."""
    store = Store()
    store.error = error
    controller = Controller(store)
    controller.read(log)
    controller.reconcile()
    core = Core(store.inner.experiment(EXPERIMENT))
    for event in log[:8]:
        core.apply(event)
    run = core.state.runs["fit-1"]
    controller.history.inform(core, run)
    assert core.expects(run)


# --- Expected times ---


def key(number: int, device: DeviceKind, *, code: str = CODE, dataset: str = DATASET) -> str:
    hyperparams = {"batch_size": 1, "n": number}
    return str(SubEpochKey.of(code=code, dataset=dataset, hyperparams=hyperparams, device=device))


def row(log_rate: float, sub_epochs: float = 3.0, variance: float = 0.0) -> SubEpochHistory:
    return SubEpochHistory(sub_epochs=sub_epochs, log_rate=log_rate, variance=variance, fixed_s=2.0)


def priors_of(rows: dict[str, SubEpochHistory], devices: set[DeviceKind | None] | None = None) -> Priors:
    return Priors(rows, code=CODE, dataset=DATASET, devices=devices or {FAST})


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 5), st.sampled_from([FAST, SLOW])),
        st.builds(row, st.floats(-50, 50), st.floats(0.1, 101), st.floats(0, 2500)),
        max_size=12,
    )
)
def test_any_history_gives_finite_times(
    rows: dict[tuple[int, DeviceKind], SubEpochHistory],
) -> None:
    """Stored values may be nonsense."""
    found = priors_of({key(*each): value for each, value in rows.items()}, {FAST, SLOW})
    for number in range(7):
        prior = found.of({"n": number, "batch_size": 1})
        assert prior is None or math.isfinite(prior.log_rate + prior.fixed_s)
    assert all(math.isfinite(found.slowness(device)) for device in (FAST, SLOW))


def test_a_prior_from_absent_devices_uses_all_rows() -> None:
    """Each kind of device counts, corrected for its slowness."""
    other = DeviceKind(kind="gpu", name="other")
    found = priors_of({key(0, SLOW): row(1.0, 3.0), key(0, other): row(3.0, 5.0)}).of(
        {"batch_size": 1, "n": 0}
    )
    assert found is not None
    assert found.log_rate == pytest.approx(2.0, abs=0.1)
    assert (found.fixed_s, found.sub_epochs) == (2.0, 8.0)


def test_a_history_predicts_times_before_the_first_sub_epoch(log: tuple[Event, ...]) -> None:
    """Expected times match actual ones; without a history, models are equal and have no forecast."""
    history = history_of(log)
    assert len(history) == MODELS
    for known, is_known, limit in ((history, True, 2), (None, False, 1)):
        begun = simulation(known)
        with pytest.raises(RuntimeError, match="no end"):
            begun.run(limit=limit)
        fit = begun.core.fit
        assert fit is not None
        run = begun.core.state.runs["fit-1"]
        assert fit.times.estimates.observations == 0
        absent = Absences().frequency(begun.now, 60.0)
        there = trainers(begun.core.state, begun.now, absent)
        found = outlook(begun.core.state, run, fit, there, join_s=60.0, absent=absent)
        assert (found is not None) is is_known
        times = [times[0] for times in fit.dispatch_state.work.time]
        if is_known:
            assert times == pytest.approx([10 * cost(f"m{n}") - 1 for n in range(MODELS)], rel=0.1)
            assert fit.dispatch_state.work.fixed[0][0] == pytest.approx(1.0)
        else:
            assert len({*times}) == 1
