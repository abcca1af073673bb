"""Earlier fits that a search starts from: their values reach the sampler and the log, and bad ones are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cerebro.commands.earlier_runs import earlier_runs
from cerebro.contract.events import Event, ModelChanged, ModelsAdded, ModelStopRequested, RunFinished
from cerebro.contract.records import CodeRecord
from cerebro.contract.runs import EarlierModel, FitRequest, Mode, NewModel, ParentCheckpoint
from cerebro.contract.search import (
    ASHA,
    CMA,
    GP,
    TPE,
    ChoiceOf,
    Earlier,
    LogUniform,
    Sampler,
    SearchRequest,
    Space,
    Uniform,
)
from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import NotFoundError, SearchError
from cerebro.search.history import Past
from cerebro.search.samplers import suggest
from cerebro.state.experiment import fold
from cerebro.state.runs import rungs
from controller.sources.search import Searching
from research.simulation.scenario import EXPERIMENT
from tests.controller.searches import EARLIER, fit_of, search_of, simulation, story
from tests.state.stories import DATASET, SHA, Story, sub_epoch

SPACE: Space = {
    "lr": LogUniform(low=0.01, high=1.0),
    "depth": ChoiceOf(values=(2, 4)),
    "warm": Uniform(low=0, high=1, when={"depth": (4,)}),
    "batch_size": ChoiceOf(values=(1,)),
}
MODELS: dict[str, dict[str, Any]] = {
    "m00": {"lr": 0.1, "depth": 2, "batch_size": 1},
    "m01": {"lr": 0.2, "depth": 4, "warm": 0.5, "batch_size": 1},
    "m02": {"lr": 5.0, "depth": 2, "batch_size": 1},
    "m03": {"lr": 0.1, "depth": 4, "batch_size": 1},
    "m04": {"lr": 0.1, "depth": 2, "batch_size": 2},
    "m05": {"lr": 0.3, "depth": 2, "batch_size": 1},
    "m06": {"lr": 0.4, "depth": 2, "batch_size": 1},
    "m07": {"lr": 0.5, "depth": 2, "width": 3, "batch_size": 1},
    "m08": {"lr": 0.6, "depth": 2, "warm": 0.5, "batch_size": 1},
    "m09": {"lr": 0.7, "depth": 2, "batch_size": 1},
}


class Logs:
    """A store with some logs and encoded specs."""

    def __init__(self, **logs: Sequence[Event]) -> None:
        self.logs = logs
        self.fingerprints: dict[str, str] = {}

    def snapshot(self, experiment: str, of_format: str) -> bytes | None:
        return None

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        if experiment not in self.logs:
            raise NotFoundError(f"no experiment {experiment!r}")
        return self.logs[experiment][after : after + 7]

    def code(self, sha256: str) -> CodeRecord:
        if sha256 not in self.fingerprints:
            raise NotFoundError("no code")
        fingerprint = self.fingerprints[sha256]
        return CodeRecord(sha256=sha256, fingerprint=fingerprint, class_name="S", source="", encoded="")


def request_of(*start_from: str | Earlier, epochs: int = 3, **changes: Any) -> FitRequest:
    earlier = tuple(each if isinstance(each, Earlier) else Earlier(each) for each in start_from)
    search = SearchRequest(procedure=ASHA(sampler=TPE()), space=SPACE, samples=9, start_from=earlier)
    given: dict[str, Any] = {"code": SHA, "metric": "loss", "mode": "min", **changes}
    return FitRequest(models=(), epochs=epochs, search=search, **given)


def ended_story() -> Story:
    """A fit with a model for each reason not to be compared."""
    found = Story()
    found.etl()
    found.fit(epochs=2, hyperparams=MODELS)
    for number, name in enumerate(MODELS):
        if name == "m05":
            found.fail(sub_epoch(1, 0, name), 0, FailureKind.USER_ERROR)
        elif name == "m06":
            found.append(ModelStopRequested(run="fit-1", model=name))
        else:
            found.epoch(1, model=name, loss=1 - number / 16)
            if name == "m09":
                found.append(ModelChanged(run="fit-1", model=name, hyperparams={"lr": 0.9}))
            found.epoch(2, model=name, loss=0.5 - number / 32)
    warm = NewModel(
        hyperparams={"lr": 0.5, "depth": 2, "batch_size": 1},
        epochs=3,
        checkpoint=ParentCheckpoint(model="m00"),
    )
    found.append(ModelsAdded(run="fit-1", models=(warm,)), RunFinished(run="fit-1", outcome="finished"))
    return found


def test_the_models_within_the_space_are_used_with_their_values() -> None:
    """All others are counted with a reason, and a failed model counts as failed."""
    logs = Logs(one=ended_story().log)
    (found,) = earlier_runs(logs, request_of("one/fit-1"), DATASET)
    assert found.run == "one/fit-1"
    assert found.models == (
        EarlierModel(hyperparams=MODELS["m00"], values={1: {"loss": 1.0}, 2: {"loss": 0.5}}),
        EarlierModel(hyperparams=MODELS["m01"], values={1: {"loss": 0.9375}, 2: {"loss": 0.46875}}),
        EarlierModel(hyperparams=MODELS["m05"], values={}, is_failed=True),
        EarlierModel(
            hyperparams={"lr": 0.6, "depth": 2, "batch_size": 1},
            values={1: {"loss": 0.5}, 2: {"loss": 0.25}},
        ),
    )
    assert found.unused == {
        "with lr outside the search space": 1,
        "with warm outside the search space": 1,
        "with batch_size outside the search space": 1,
        "without a value": 1,
        "with width, which the search space lacks": 1,
        "changed while they trained": 1,
        "started from weights of another model": 1,
    }


def test_values_after_epochs_that_the_new_models_never_reach_are_left_out() -> None:
    """The sampler compares models after the same epoch."""
    (found,) = earlier_runs(Logs(one=ended_story().log), request_of("one/fit-1", epochs=1), DATASET)
    assert [list(each.values) for each in found.models] == [[1], [1], [], [1]]


def test_equal_data_of_another_experiment_is_accepted() -> None:
    """The name of a data set is its experiment's name and a fingerprint."""
    logs = Logs(one=ended_story().log)
    assert earlier_runs(logs, request_of("one/fit-1"), f"other-{DATASET.rpartition('-')[2]}")


@pytest.mark.parametrize("is_same", [True, False])
def test_equal_code_is_accepted_in_another_encoding(is_same: bool) -> None:
    """A spec of another kernel has other bytes, and the same fingerprint."""
    logs = Logs(one=ended_story().log)
    logs.fingerprints = {SHA: "a" * 64, "1" * 64: ("a" if is_same else "b") * 64}
    request = request_of("one/fit-1", code="1" * 64)
    if is_same:
        assert earlier_runs(logs, request, DATASET)
        return
    with pytest.raises(SearchError, match=r'Earlier\("one/fit-1", any_code=True\)'):
        earlier_runs(logs, request, DATASET)
    any_code = request_of(Earlier("one/fit-1", any_code=True), code="1" * 64)
    assert earlier_runs(logs, any_code, DATASET)


@pytest.mark.parametrize(
    ("start_from", "changes", "message"),
    [
        ("gone/fit-1", {}, "there is no experiment 'gone': it was deleted"),
        ("one/fit-2", {}, "'one' has fit-1: name an ended fit"),
        ("one/etl-1", {}, "'one' has fit-1: name an ended fit"),
        ("one/fit-1", {"metric": "accuracy"}, r"by loss \(min\), and this fit by accuracy \(min\)"),
        ("one/fit-1", {"mode": "max"}, r"by loss \(min\), and this fit by loss \(max\)"),
        (
            "one/fit-1",
            {"objectives": {"loss": "min", "train_s": "min"}},
            r"this fit by loss \(min\), train_s \(min\)",
        ),
        ("one/fit-1", {"code": "1" * 64}, "trained another spec"),
        ("open/fit-1", {}, "which has not ended: wait for its end, or stop it"),
        ("empty/fit-1", {}, r"no value of its 2 models can be used \(2 without a value\)"),
    ],
)
def test_an_unusable_fit_is_refused(start_from: str, changes: dict[str, Any], message: str) -> None:
    """The message names the fit and says what to change."""
    open_story, empty = Story(), Story()
    for each in (open_story, empty):
        each.etl()
        each.fit(hyperparams={"m00": MODELS["m00"], "m01": MODELS["m01"]})
    empty.append(RunFinished(run="fit-1", outcome="stopped"))
    logs = Logs(one=ended_story().log, open=open_story.log, empty=empty.log)
    with pytest.raises(SearchError, match=message):
        earlier_runs(logs, request_of(start_from, **changes), DATASET)


def test_other_data_is_refused_unless_the_user_accepts_it() -> None:
    """The message shows how."""
    logs = Logs(one=ended_story().log)
    with pytest.raises(SearchError, match=r'Earlier\("one/fit-1", any_data=True\)'):
        earlier_runs(logs, request_of("one/fit-1"), "one-x")
    assert earlier_runs(logs, request_of(Earlier("one/fit-1", any_data=True)), "one-x")


def test_several_objectives_need_a_value_of_each() -> None:
    """A measure of the platform counts, also if a constraint names it."""
    objectives: dict[str, Mode] = {"loss": "min", "model_bytes": "min"}
    found = Story()
    found.etl()
    found.fit(hyperparams={"m00": MODELS["m00"]}, objectives=objectives)
    found.epoch(1, loss=0.5)
    found.append(RunFinished(run="fit-1", outcome="stopped"))
    request = request_of("one/fit-1", objectives=objectives)
    (earlier,) = earlier_runs(Logs(one=found.log), request, DATASET)
    assert earlier.models[0].values == {1: {"loss": 0.5, "model_bytes": 1.0}}


# --- samplers ------------------------------------------------------------------------------------

NUMBERS: Space = {"x": Uniform(low=0, high=1), "y": Uniform(low=0, high=1)}


def distance(values: dict[str, Any]) -> float:
    return (float(values["x"]) - 0.2) ** 2 + (float(values["y"]) - 0.8) ** 2


@pytest.mark.parametrize("sampler", [TPE(), pytest.param(GP(), marks=pytest.mark.slow), CMA()])
def test_samplers_learn_from_earlier_models(sampler: Sampler) -> None:
    """The first suggestions are closer to the optimum than without them, and are repeatable."""
    grid: list[dict[str, Any]] = [{"x": x / 5, "y": y / 5} for x in range(6) for y in range(6)]
    earlier = [
        Past(hyperparams=each, scores={1: -distance(each)}, is_running=False, is_earlier=True)
        for each in grid
    ]
    numbers = range(2) if isinstance(sampler, GP) else range(8)
    informed = suggest(sampler, NUMBERS, earlier, numbers, 3)
    alone = suggest(sampler, NUMBERS, [], numbers, 3)
    assert sum(map(distance, informed)) < sum(map(distance, alone)) / 2
    assert informed == suggest(sampler, NUMBERS, earlier, numbers, 3)


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11])
def test_cma_starts_from_any_number_of_earlier_models(count: int) -> None:
    """A model without a conditional value counts too."""
    space = {**NUMBERS, "z": Uniform(low=0, high=1, when={"x": (0.5,)})}
    earlier = [
        Past(
            hyperparams={"x": 0.1, "y": 0.1 + each / 20}, scores={1: each}, is_running=False, is_earlier=True
        )
        for each in range(count)
    ]
    (found,) = suggest(CMA(), space, earlier, range(1), 3)
    assert all(0 <= float(value) <= 1 for value in found.values())  # type: ignore[arg-type]


def test_random_values_at_the_start_are_not_those_of_the_earlier_fit() -> None:
    """Both fits may have the same seed."""
    first = suggest(TPE(), NUMBERS, [], range(5), 0)
    earlier = [Past(hyperparams=each, scores={1: 1.0}, is_running=False, is_earlier=True) for each in first]
    second = suggest(TPE(), NUMBERS, earlier, range(5), 0)
    assert not {repr(each) for each in first} & {repr(each) for each in second}


# --- the run -------------------------------------------------------------------------------------


def test_a_search_uses_the_models_in_its_log() -> None:
    """So it continues after a crash of the controller, without the earlier experiment."""
    search = search_of(ASHA(sampler=TPE(startup=7)), samples=6, start_from=(Earlier("one/fit-1"),))
    undisturbed = simulation(search, epochs=4, earlier=(EARLIER,))
    expected = story(fit_of(undisturbed))
    assert expected != story(fit_of(simulation(search, epochs=4)))
    for write in range(0, undisturbed.writes, 29):
        died = simulation(search, epochs=4, earlier=(EARLIER,), crash_before=frozenset({write, write + 2}))
        assert story(fit_of(died)) == expected
    run = fold(EXPERIMENT, undisturbed.log).runs["fit-1"]
    history = Searching(run)._search.history()
    assert [past.hyperparams["lr"] for past in history] == [each.hyperparams["lr"] for each in EARLIER.models]
    assert all(past.is_earlier and not past.is_running for past in history)
    assert history[0].scores == {2: -abs(0.0002 - 0.01)}
    assert rungs.earlier_lines(run) == [
        "learns from 7 models of one/fit-1, not from 3: 2 without a value; 1 with lr outside the search space"
    ]
    assert "search: learns from 7 models" in "\n".join(rungs.lines(run))
