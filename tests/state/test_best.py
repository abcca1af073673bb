"""The best model over all fits with one metric and data set."""

from __future__ import annotations

from cerebro.contract.events import ModelStopRequested, RunFinished, RunRequested, RunStarted
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.state import RunState
from cerebro.state.models.best import best_model
from cerebro.state.reports import state_words
from tests.dispatcher.stories import CODE, Story


def two_fits(
    *, metric: str = "accuracy", mode: str = "max", valid: tuple[int, ...] = (), dataset: str = "d1"
) -> Story:
    """A fit with a best accuracy of 0.9405 on data set d1, and a second fit with 0.9205."""
    story = Story("twice")
    story.workers_join()
    story.etl()
    story.fit(models=2, epochs=2)
    for epoch in (1, 2):
        story.train("m00", epoch)
    story.finish()
    if dataset != "d1":
        story.etl(run="etl-2", dataset=dataset)
    values = {"code": CODE, "models": ({"batch_size": 32},), "epochs": 1, "metric": metric, "mode": mode}
    story.append(RunRequested(run="fit-2", request=FitRequest.model_validate(values)))
    plan = FitPlan(
        dataset=dataset,
        models={"m00": {"batch_size": 32}},
        partitions={0: 898, 1: 898},
        valid_partitions=valid,
    )
    story.append(RunStarted(run="fit-2", plan=plan))
    story.train("m00", 1, run="fit-2")
    return story


def chosen(story: Story, fit: str = "") -> tuple[str, str, int] | None:
    found = best_model(story.state, story.state.runs.get(fit))
    return (found.run.id, found.model.id, found.epoch) if found else None


def test_the_best_model_is_chosen_over_all_fits_with_one_metric() -> None:
    story = two_fits()
    assert chosen(story) == ("fit-1", "m00", 2)
    assert chosen(story, "fit-2") == ("fit-1", "m00", 2)


def test_only_fits_with_the_same_metric_mode_and_split_are_compared() -> None:
    assert chosen(two_fits(metric="loss", mode="min")) == ("fit-2", "m00", 1)
    assert chosen(two_fits(metric="loss", mode="min"), "fit-1") == ("fit-1", "m00", 2)
    assert chosen(two_fits(mode="min")) == ("fit-2", "m00", 1)
    assert chosen(two_fits(valid=(0,))) is None  # not validated yet


def test_fits_on_different_data_sets_are_not_compared() -> None:
    assert chosen(two_fits(dataset="d2")) == ("fit-2", "m00", 1)
    assert chosen(two_fits(dataset="d2"), "fit-1") == ("fit-1", "m00", 2)


def test_of_equal_fits_the_first_has_the_best_model() -> None:
    story = Story("equal")
    story.workers_join()
    story.etl()
    for fit in ("fit-1", "fit-2"):
        story.fit(models=1, epochs=1, run=fit)
        story.train("m00", 1, run=fit)
        story.finish(fit)
    assert chosen(story) == chosen(story, "fit-2") == ("fit-1", "m00", 1)


def test_a_fit_with_a_stopped_model_is_ended_not_finished() -> None:
    """A fit is finished only if all its models are."""
    story = Story("partly")
    story.workers_join()
    story.etl()
    story.fit(models=3, epochs=1)
    story.train("m00", 1)
    story.append(ModelStopRequested(run="fit-1", model="m01"))
    run = story.state.runs["fit-1"]
    assert (state_words.run(run), state_words.shortfall(run)) == ("running", "")
    story.train("m02", 1)
    story.append(RunFinished(run="fit-1", outcome="finished"))
    assert run.state is RunState.FINISHED
    assert state_words.run(run) == state_words.experiment(story.state) == "ended"
    assert state_words.shortfall(run) == "1 of 3 models stopped"
    story.fit(models=1, epochs=1, run="fit-2")
    story.train("m00", 1, run="fit-2")
    story.finish("fit-2")
    assert state_words.experiment(story.state) == "finished"
