"""Commands to add, clone, change, extend and prioritise models: their events and their refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cerebro.commands.command import Command
from cerebro.commands.command_events import events_of, outcomes, problems_of
from cerebro.commands.rules import CONFIG_COMMANDS, CommandKind, allowed, check_free
from cerebro.contract.events import (
    ModelExtended,
    ModelStopRequested,
    RunFinished,
    RunStarted,
    RunStopRequested,
)
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.search import ChoiceOf, FixedProcedure, Random, SearchRequest, Space
from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import (
    BadRequestError,
    CerebroError,
    ConflictError,
    NotFoundError,
    PartlyDoneError,
    SearchSpaceError,
)
from cerebro.state import Run
from tests.state.stories import DATASET, Story, sub_epoch
from tests.state.test_beside import evaluation

FINISHED = RunFinished(run="fit-1", outcome="finished")
BY = "ann"


@pytest.fixture
def story() -> Story:
    """m00 has trained one of three epochs and is in the next; m01 has not started."""
    story = Story()
    story.fit(epochs=3)
    story.epoch(1, loss=0.5)
    story.train(2, 0, loss=0.4)
    return story


def give_command(story: Story, kind: CommandKind, model: str = "", **fields: Any) -> Any:
    """Give a command and fold its event."""
    command = Command(kind=kind, models=(model,) if model else (), **fields)
    (event,) = events_of(command, story.state, by=BY)
    story.append(event)
    (record,) = outcomes(command, story.state, {story.state.seq}, by=BY)
    return record


def test_a_cold_clone_starts_from_scratch_and_a_warm_clone_continues(story: Story) -> None:
    """With the given values instead of the parent's."""
    (cold,) = give_command(story, CommandKind.CLONE_MODEL, "m00", hyperparams={"lr": 0.7}).added
    assert (story.model(cold).lineage.parent, [*story.model(cold).sub_epochs]) == ("m00", [])
    assert story.model(cold).hyperparams == {"batch_size": 1, "lr": 0.7}
    for at, sub_epochs in (("last", 3), ("best", 2), (1, 2)):
        (warm,) = give_command(
            story, CommandKind.CLONE_MODEL, "m00", warm=True, at=at, hyperparams={"lr": 0.9}
        ).added
        assert [*story.model(warm).sub_epochs] == story.model("m00").sub_epochs[:sub_epochs]
        assert story.model(warm).hyperparams_of(sub_epochs - 1) == {"batch_size": 1, "lr": 0.1}
        assert story.model(warm).hyperparams_of(sub_epochs) == {"batch_size": 1, "lr": 0.9}


NETS: Space = {
    "batch_size": ChoiceOf(values=(1,)),
    "net": ChoiceOf(values=("cnn", "vit")),
    "patch": ChoiceOf(values=(4, 8), when={"net": ("vit",)}),
}
GRID, RULES = {"space": NETS}, {"space": NETS, "search": SearchRequest(procedure=FixedProcedure())}
SEARCH = {"search": SearchRequest(procedure=Random(), space=NETS, samples=9)}


@pytest.mark.parametrize("of", [GRID, RULES, SEARCH], ids=["grid", "stop rules", "search"])
def test_a_clone_has_the_hyperparameters_that_apply(of: dict[str, Any]) -> None:
    """It may name one that its parent lacks, and loses one whose condition it does not meet."""
    story = Story()
    cnn: Hyperparameters = {"batch_size": 1, "net": "cnn"}
    vit: Hyperparameters = {"batch_size": 1, "net": "vit", "patch": 4}
    story.fit(hyperparams={"m00": cnn, "m01": vit}, **of)
    for model, values, expected in (
        ("m00", {"net": "vit", "patch": 8}, {**vit, "patch": 8}),
        ("m01", {"net": "cnn"}, cnn),
        ("m01", {"patch": 8}, {**vit, "patch": 8}),
    ):
        (clone,) = give_command(story, CommandKind.CLONE_MODEL, model, hyperparams=values).added
        assert story.model(clone).hyperparams == expected
    with pytest.raises(NotFoundError, match="model m00 has no hyperparameter 'pach'; there is patch"):
        events_of(
            Command(kind=CommandKind.CLONE_MODEL, models=("m00",), hyperparams={"pach": 8}),
            story.state,
            by=BY,
        )
    with pytest.raises(
        SearchSpaceError, match="a model with net='vit' also needs 'patch': give its value as well"
    ):
        give_command(story, CommandKind.CLONE_MODEL, "m00", hyperparams={"net": "vit"})
    with pytest.raises(ConflictError, match="a model with net='vit' also needs 'patch': clone m00 instead"):
        give_command(story, CommandKind.CHANGE_MODEL, "m00", hyperparams={"net": "vit"})


@pytest.mark.parametrize("of", [GRID, RULES, SEARCH], ids=["grid", "stop rules", "search"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"net": "vit"}, "a model with net='vit' also needs 'patch': give its value as well"),
        (
            {"net": "cnn", "patch": 4},
            "'patch' is only for models with net='vit': leave it out, or change these",
        ),
        ({"patch": 4}, "'patch' is only for models with net='vit'"),
    ],
)
def test_an_added_model_follows_the_conditions(
    of: dict[str, Any], values: Hyperparameters, message: str
) -> None:
    """It has the hyperparameters that apply, and no others; a refused list adds no model."""
    story = Story()
    story.fit(hyperparams={"m00": {"batch_size": 1, "net": "cnn"}}, **of)
    valid: list[Hyperparameters] = [
        {"batch_size": 1, "net": "cnn"},
        {"batch_size": 1, "net": "vit", "patch": 8},
    ]
    wrong: Hyperparameters = {"batch_size": 1, **values}
    with pytest.raises(SearchSpaceError, match=message):
        give_command(story, CommandKind.ADD_MODELS, configurations=[*valid, wrong])
    added = give_command(story, CommandKind.ADD_MODELS, configurations=valid).added
    assert [story.model(name).hyperparams for name in added] == valid


def test_a_clone_cannot_have_a_value_whose_condition_it_does_not_meet() -> None:
    """Else user code would receive a hyperparameter that it must ignore."""
    story = Story()
    story.fit(hyperparams={"m00": {"batch_size": 1, "net": "cnn"}}, space=NETS)
    with pytest.raises(SearchSpaceError, match="'patch' is only for models with net='vit'"):
        give_command(story, CommandKind.CLONE_MODEL, "m00", hyperparams={"patch": 4})


def test_a_model_that_trains_without_a_hyperparameter_is_cloned_without_it() -> None:
    """A user may have added it so on purpose."""
    story = Story()
    bare: Hyperparameters = {"batch_size": 1, "net": "vit"}
    story.fit(hyperparams={"m00": bare}, space=NETS)
    (clone,) = give_command(story, CommandKind.CLONE_MODEL, "m00", hyperparams={"batch_size": 2}).added
    assert story.model(clone).hyperparams == {**bare, "batch_size": 2}


def test_a_model_is_changed_extended_and_prioritised(story: Story) -> None:
    """Also to fewer epochs and to a lower priority."""
    assert give_command(story, CommandKind.CHANGE_MODEL, "m00", hyperparams={"lr": 3}).what == (
        "changed model m00: lr=3 (before: lr=0.1)"
    )
    assert story.model().hyperparams == {"batch_size": 1, "lr": 3}
    for epochs in (9, 2):
        give_command(story, CommandKind.EXTEND_MODEL, "m00", epochs=epochs)
        assert story.model().epochs == epochs
    give_command(story, CommandKind.PRIORITIZE, "m00", priority=-1)
    assert story.model().priority == -1


def test_an_ended_run_reopens_for_new_work(story: Story) -> None:
    """Its stopped models stay stopped."""
    story.train(2, 1)
    story.epoch(3)
    story.append(ModelStopRequested(run="fit-1", model="m01"), FINISHED)
    give_command(story, CommandKind.EXTEND_MODEL, "m00", epochs=4)
    assert story.run.is_open
    story.epoch(4)
    story.append(FINISHED)
    give_command(story, CommandKind.CLONE_MODEL, "m00", warm=True, epochs=5)
    assert story.run.is_open
    assert [str(model.state) for model in story.run.models.values()] == ["finished", "stopped", "active"]


def stop_m00(story: Story) -> None:
    story.append(ModelStopRequested(run="fit-1", model="m00"))


def fail_m00(story: Story) -> None:
    story.fail(sub_epoch(2, 1), 1, FailureKind.USER_ERROR)


def finish(story: Story) -> None:
    """m00 finishes and m01 is stopped."""
    story.train(2, 1)
    story.epoch(3)
    story.append(FINISHED)


def train_on(story: Story) -> None:
    """Train until the first epoch's checkpoint is no longer needed."""
    story.train(2, 1, loss=0.1)
    story.train(3, 0)


def stop_run(story: Story) -> None:
    story.append(RunStopRequested(run="fit-1"))


def fail_run(story: Story) -> None:
    story.fail(sub_epoch(2, 1), 1, FailureKind.REQUIREMENTS)
    story.append(RunFinished(run="fit-1", outcome="failed", error="why"))


def read_beside(story: Story) -> None:
    """m01 trains and is tested while m00 trains."""
    for epoch in (1, 2, 3):
        story.epoch(epoch, model="m01")
    plan = EvaluatePlan(kind="test", dataset=DATASET, fit="fit-1", models={"m01": 3}, partitions={0: 4})
    story.append(evaluation(1, "m01"), RunStarted(run="test-1", plan=plan))


def read_by_a_test(story: Story) -> None:
    finish(story)
    story.append(evaluation(1, "m01"))


ADD, CLONE = CommandKind.ADD_MODELS, CommandKind.CLONE_MODEL
CHANGE, EXTEND = CommandKind.CHANGE_MODEL, CommandKind.EXTEND_MODEL
PRIORITIZE, STOP_SEARCH = CommandKind.PRIORITIZE, CommandKind.STOP_SEARCH
GOOD = {"batch_size": 2}
DEEP: Any = json.loads("[" * 600 + "]" * 600)

BAD: list[tuple[Callable[[Story], None] | None, CommandKind, str, dict[str, Any], type[CerebroError], str]] = [
    (None, ADD, "", {}, SearchSpaceError, "no models to add: give a list"),
    (None, ADD, "", {"configurations": ({"lr": 1},)}, SearchSpaceError, "batch_size is None"),
    (None, ADD, "", {"configurations": ({"batch_size": 11},)}, SearchSpaceError, "from 1 to 10 .the smallest"),
    (None, ADD, "", {"configurations": ({"batch_size": True},)}, SearchSpaceError, "batch_size is True"),
    (None, ADD, "", {"configurations": ({**GOOD, "f": len},)}, SearchSpaceError, "use its name"),
    (None, ADD, "", {"configurations": ({**GOOD, "f": float("nan")},)}, SearchSpaceError, "use numbers, text"),
    (None, ADD, "", {"configurations": ({**GOOD, "f": "\ud800"},)}, SearchSpaceError, "a lone surrogate"),
    (None, ADD, "", {"configurations": ({**GOOD, "f": {1: 2}},)}, SearchSpaceError, "f={1: 2} cannot be .* key 1"),
    (None, CHANGE, "m00", {"hyperparams": {"lr": 2**53 + 1}}, SearchSpaceError, "lr=9007199254740993 cannot be"),
    (None, CHANGE, "m00", {"hyperparams": {"lr": DEEP}}, SearchSpaceError, "nested too deeply"),
    (None, ADD, "", {"configurations": (GOOD,), "epochs": 0}, BadRequestError, "whole number from 1"),
    (None, ADD, "", {"configurations": (GOOD,), "epochs": 1.5}, BadRequestError, "whole number from 1"),
    (stop_run, ADD, "", {"configurations": (GOOD,)}, ConflictError, "is stopping: wait until"),
    (fail_run, ADD, "", {"configurations": (GOOD,)}, ConflictError, "fix it and request a new run"),
    (read_by_a_test, ADD, "", {"configurations": (GOOD,)}, ConflictError, "wait for test-1, or stop it first"),
    (None, CLONE, "m09", {}, NotFoundError, "no model 'm09'; there is m00, m01"),
    (None, CLONE, "m00", {"hyperparams": {"lrr": 1}}, NotFoundError, "no hyperparameter 'lrr'; there is lr"),
    (None, CLONE, "m00", {"at": "worst", "warm": True}, BadRequestError, "expected 'last', 'best' or"),
    (None, CLONE, "m00", {"at": True, "warm": True}, BadRequestError, "expected 'last', 'best' or"),
    (None, CLONE, "m00", {"at": "best"}, BadRequestError, "give warm=True as well"),
    (None, CLONE, "m01", {"warm": True}, ConflictError, "never trained: wait for its first sub-epoch"),
    (None, CLONE, "m00", {"warm": True, "at": 2}, ConflictError, "epoch 2 is not complete"),
    (train_on, CLONE, "m00", {"warm": True, "at": 1}, ConflictError, "checkpoint of epoch 1 of m00 is gone: there is"),
    (finish, CLONE, "m00", {"warm": True}, ConflictError, "give epochs of 4 or more"),
    (None, CHANGE, "m09", {"hyperparams": {"lr": 1}}, NotFoundError, "no model 'm09'"),
    (None, CHANGE, "m00", {"hyperparams": {"width": 1}}, NotFoundError, "no hyperparameter 'width'"),
    (None, CHANGE, "m00", {"hyperparams": {"batch_size": 11}}, SearchSpaceError, "from 1 to 10"),
    (None, CHANGE, "m00", {"hyperparams": {"lr": 0.1}}, ConflictError, "has lr=0.1 already"),
    (None, CHANGE, "m00", {"hyperparams": {"lr": ".5"}}, SearchSpaceError, "is 0.1, and '.5' is a text: give a number"),
    (None, CHANGE, "m00", {"hyperparams": {"lr": True}}, SearchSpaceError, "is true or false: give a number"),
    (None, CLONE, "m00", {"hyperparams": {"lr": "1e-3"}}, SearchSpaceError, "is a text: give a number"),
    (None, CHANGE, "m00", {}, ConflictError, "give a value that differs"),
    (stop_m00, CHANGE, "m00", {"hyperparams": {"lr": 1}}, ConflictError, "is stopped: resume it first"),
    (fail_m00, CHANGE, "m00", {"hyperparams": {"lr": 1}}, ConflictError, "is failed: retry it first"),
    (finish, CHANGE, "m00", {"hyperparams": {"lr": 1}}, ConflictError, "clone it with other values, or extend"),
    (None, EXTEND, "m00", {"epochs": None}, BadRequestError, "whole number from 1"),
    (None, EXTEND, "m00", {"epochs": 1}, ConflictError, "m00 has begun epoch 2: give at least 2"),
    (None, EXTEND, "m00", {"epochs": 3}, ConflictError, "trained for 3 epochs already"),
    (finish, EXTEND, "m00", {"epochs": 2}, ConflictError, "m00 has begun epoch 3: give at least 3"),
    (stop_m00, EXTEND, "m00", {"epochs": 5}, ConflictError, "is stopped: resume it first"),
    (read_beside, EXTEND, "m01", {"epochs": 5}, ConflictError, "test-1 reads m01: wait for test-1, or stop it"),
    (None, PRIORITIZE, "m00", {"priority": "urgent"}, BadRequestError, "no priority 'urgent': choose"),
    (None, PRIORITIZE, "m00", {"priority": float("nan")}, BadRequestError, "a whole number from -9 to 9"),
    (None, PRIORITIZE, "m00", {"priority": "9" * 5000}, BadRequestError, "no priority '999"),
    (None, PRIORITIZE, "m00", {"priority": 10}, BadRequestError, "no priority 10"),
    (None, PRIORITIZE, "m00", {"priority": 0}, ConflictError, "priority of m00 is normal already"),
    (finish, PRIORITIZE, "m00", {"priority": 1}, ConflictError, "is finished"),
    (None, STOP_SEARCH, "", {}, ConflictError, "fit-1 has no search: stop it, or single models"),
    (finish, STOP_SEARCH, "", {}, ConflictError, "fit-1 is finished"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=[f"{n}-{case[1]}" for n, case in enumerate(BAD)])
def test_an_impossible_command_is_refused_with_a_remedy(story: Story, case: Any) -> None:
    """One sentence each; no event is sent."""
    before, kind, model, fields, error, message = case
    if before is not None:
        before(story)
    with pytest.raises(error, match=message):
        events_of(Command(kind=kind, models=(model,) if model else (), **fields), story.state, by=BY)


@pytest.mark.parametrize("case", BAD, ids=[f"{n}-{case[1]}" for n, case in enumerate(BAD)])
def test_a_form_shows_the_same_error_as_the_notebook(story: Story, case: Any) -> None:
    """The first problem equals the notebook's error and names the field."""
    before, kind, model, fields, error, message = case
    if before is not None:
        before(story)
    command = Command(kind=kind, models=(model,) if model else (), **fields)
    if model == "m09":
        with pytest.raises(error, match=message):
            problems_of(command, story.state)
        return
    first = problems_of(command, story.state)[0]
    with pytest.raises(error, match=message):
        raise first.error
    assert not first.part or hasattr(command, first.part)
    given = {
        "batch_size",
        *fields.get("hyperparams", ()),
        *(n for each in fields.get("configurations", ()) for n in each),
    }
    assert not first.name or first.name in given


def test_all_problems_are_reported_together(story: Story) -> None:
    """Each problem names its field."""
    given = {"lr": "fast", "batch_size": True, "width": 3}
    command = Command(kind=CLONE, models=("m00",), hyperparams=given, epochs=0, at="worst", warm=True)
    found = [(problem.part, problem.name) for problem in problems_of(command, story.state)]
    assert found == [*(("hyperparams", name) for name in given), ("epochs", ""), ("at", "")]
    assert problems_of(Command(kind=CLONE, models=("m00",), hyperparams={"lr": 3}), story.state) == []


def test_each_offered_command_has_an_effect(story: Story) -> None:
    """In each state of a model, the fold accepts every command in `allowed`."""
    given = {"hyperparams": {"lr": 5}, "epochs": 8, "priority": 4, "configurations": (GOOD,)}
    for change in (lambda _: None, stop_m00, fail_m00, finish):
        run_story = Story()
        run_story.fit(epochs=3)
        run_story.epoch(1)
        run_story.train(2, 0)
        change(run_story)
        for model in ("", "m00", "m01"):
            for kind in (
                allowed(run_story.state, run_story.run, run_story.model(model) if model else None)
                & CONFIG_COMMANDS
            ):
                other = Story()
                other.append(*(event.model_copy(update={"seq": 0}) for event in run_story.log[2:]))
                give_command(other, kind, model, **given)


def test_a_model_that_is_tested_is_not_trained_on(story: Story) -> None:
    """Training could remove the checkpoint under test. After the test the command is allowed."""
    read_beside(story)
    story.append(ModelExtended(run="fit-1", model="m01", epochs=5))
    assert (story.state.commands[-1].is_late, story.model("m01").epochs) == (True, 3)
    story.append(RunFinished(run="test-1", outcome="finished"))
    give_command(story, EXTEND, "m01", epochs=5, run="fit-1")
    assert story.model("m01").epochs == 5


def test_models_that_already_have_the_value_are_omitted(story: Story) -> None:
    """A command that would change no model is refused."""
    give_command(story, PRIORITIZE, "m00", priority=1)
    command = Command(kind=PRIORITIZE, models=("m00", "m01"), priority=1)
    (event,) = events_of(command, story.state, by=BY)
    assert event.model == "m01"  # type: ignore[union-attr]
    assert problems_of(command, story.state) == []
    story.append(event)
    with pytest.raises(ConflictError, match="priority of m00 is high already"):
        events_of(command, story.state, by=BY)
    with pytest.raises(NotFoundError, match="no model 'm09'"):
        events_of(Command(kind=PRIORITIZE, models=("m00", "m09"), priority=1), story.state, by=BY)


def test_a_partly_late_command_names_the_late_models(story: Story) -> None:
    """The error names the model that changed in the meantime, not the other one."""
    command = Command(kind=EXTEND, models=("m00", "m01"), epochs=8)
    first, second = events_of(command, story.state, by=BY)
    story.append(first, ModelStopRequested(run="fit-1", model="m01"), second)
    seqs = {story.state.seq - 2, story.state.seq}
    with pytest.raises(PartlyDoneError, match=r"^m00 changed, m01 did not: .*m01 of fit-1 is stopped"):
        outcomes(command, story.state, seqs, by=BY)


def test_hyperparameters_of_added_models_must_be_known(story: Story) -> None:
    """The message suggests similar names. A model may lack a name."""
    given = ({"batch_size": 2, "Ir": 1}, {"batch_size": 2, "momentum": 0.9})
    command = Command(kind=CommandKind.ADD_MODELS, configurations=given)
    found = problems_of(command, story.state)
    assert [(problem.part, problem.name) for problem in found] == [
        ("configurations", "Ir"),
        ("configurations", "momentum"),
    ]
    assert str(found[0].error).startswith("fit-1 has no hyperparameter 'Ir'; there is lr")
    with pytest.raises(NotFoundError, match="has no hyperparameter 'Ir'"):
        events_of(command, story.state, by=BY)
    assert give_command(story, CommandKind.ADD_MODELS, configurations=({"batch_size": 2},)).added == ("m02",)


def test_a_refused_test_suggests_models_with_checkpoints(story: Story) -> None:
    """During a fit the message suggests only models that the test accepts."""
    story.epoch(1, model="m01", loss=0.1)
    story.train(2, 1)
    story.epoch(3)
    run = Run(id="test-1", request=EvaluateRequest(kind="test", fit="fit-1", split="train"))
    with pytest.raises(ConflictError, match=r"name finished models \(m00\)"):
        check_free(story.state, run)
    best = story.run.best_epoch(story.model("m00"))
    reference = story.model("m00").epoch_checkpoint(best or 0)
    assert reference is not None
    story.model("m00").checkpoints.removed.add(reference.name)
    with pytest.raises(ConflictError) as caught:
        check_free(story.state, run)
    assert "m00" not in str(caught.value)
