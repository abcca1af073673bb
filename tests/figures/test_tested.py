"""Test metrics equal the user's values, or are marked as means."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cerebro import figures
from cerebro.contract.events import RunRequested, RunStarted
from cerebro.contract.metrics import Terms
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks.results import TaskResult
from cerebro.state import Run
from tests.state.stories import DATASET, Story, etl_plan

METRICS = st.dictionaries(
    st.sampled_from(["accuracy", "auc", "f1"]),
    st.floats(allow_nan=False, allow_infinity=False, width=64, min_value=-1e9, max_value=1e9),
)
SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=5)


def planned(story: Story, sizes: list[int], *, is_whole: bool) -> Run:
    """A test of two models on a split with these partition sizes."""
    plan = EvaluatePlan(
        kind="test",
        dataset=DATASET,
        fit="fit-1",
        models={"m00": 3, "m01": 1},
        partitions=dict(enumerate(sizes)),
        is_whole=is_whole,
    )
    story.append(
        RunRequested(run="test-1", request=EvaluateRequest(kind="test", fit="fit-1", split="test")),
        RunStarted(run="test-1", plan=plan),
    )
    return story.state.runs["test-1"]


@given(SIZES, METRICS)
def test_metrics_of_the_whole_split_are_shown_unchanged(sizes: list[int], metrics: dict[str, float]) -> None:
    """For any number of partitions: one number per metric, without averaging."""
    story = Story()
    run = planned(story, sizes, is_whole=True)
    for task in list(run.tasks.by_key.values()):
        story.do(task.key, 0, TaskResult(rows=sum(sizes), metrics=metrics))
    found = figures.tested(run)
    assert [(one.model, one.epoch, one.rows, one.parts) for one in found] == [
        ("m00", 3, sum(sizes), 1),
        ("m01", 1, sum(sizes), 1),
    ]
    assert all(one.metrics == metrics for one in found)
    assert figures.averaged(found) == ""


def test_summed_ratios_of_parts_equal_those_of_the_whole_split() -> None:
    """Only actual means are marked as means."""
    story = Story()
    run = planned(story, [3, 4], is_whole=False)
    for partition, (terms, loss) in enumerate([(Terms(2, 3), 0.5), (Terms(0, 1), 1.0)]):
        result = TaskResult(rows=3 + partition, metrics={"f1": 0.9}, ratios={"f1": terms})
        story.do(run.find(f"test-1/test/m00/p{partition}").key, 0, result)
        result = TaskResult(rows=3 + partition, metrics={"f1": 0.9, "loss": loss}, ratios={"f1": terms})
        story.do(run.find(f"test-1/test/m01/p{partition}").key, 0, result)
    first, second = figures.tested(run)
    assert first.metrics == {"f1": 0.5}
    assert figures.averaged([first]) == ""
    assert second.metrics == {"f1": 0.5, "loss": (3 * 0.5 + 4 * 1.0) / 7}
    assert "weighted by rows (loss; the others are of all rows)" in figures.averaged([first, second])


def test_a_test_on_other_rows_than_the_fit_names_its_etl_run() -> None:
    """Without the note, metrics of different rows would look comparable."""
    story = Story()
    story.etl()
    story.fit()
    run = planned(story, [3], is_whole=True)
    assert figures.other_rows(story.state, run) == ""
    plan = etl_plan(2, {"train": 5, "test": 3}).model_copy(update={"dataset": "one-e"})
    story.append(
        RunRequested(run="etl-2", request=story.state.runs["etl-1"].request),
        RunStarted(run="etl-2", plan=plan),
    )
    assert isinstance(run.plan, EvaluatePlan)
    run.plan = run.plan.model_copy(update={"dataset": "one-e"})
    assert (
        figures.other_rows(story.state, run)
        == "test-1 reads the rows of etl-2; fit-1 trained on another data set"
    )
