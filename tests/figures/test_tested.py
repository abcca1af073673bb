"""What test runs measured: metrics are the user's own to the bit, or are said to be means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro import figures
from cerebro.contract.events import RunRequested, RunStarted
from cerebro.contract.metrics import Terms
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks import TaskResult
from cerebro.state import Run
from tests.state.stories import DATASET, Story

METRICS = st.dictionaries(
    st.sampled_from(["accuracy", "auc", "f1"]),
    st.floats(allow_nan=False, allow_infinity=False, width=64, min_value=-1e9, max_value=1e9),
)
SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=5)


def planned(story: Story, sizes: list[int], *, is_whole: bool) -> Run:
    """A test of two models on a split cut into partitions of these sizes."""
    plan = EvaluatePlan(
        kind="test",
        dataset=DATASET,
        fit="fit-1",
        models={"m00": 3, "m01": 1},
        partitions=dict(enumerate(sizes)),
        is_whole=is_whole,
    )
    story.tell(
        RunRequested(run="test-1", request=EvaluateRequest(kind="test", fit="fit-1", split="test")),
        RunStarted(run="test-1", plan=plan),
    )
    return story.state.runs["test-1"]


@given(SIZES, METRICS)
def test_what_user_code_returned_for_the_whole_split_is_told_as_it_is(
    sizes: list[int], metrics: dict[str, float]
) -> None:
    """However many partitions the split is cut into: one number per metric, to the bit, and nothing is averaged."""
    story = Story()
    run = planned(story, sizes, is_whole=True)
    for task in list(run.tasks.values()):
        story.do(task.key, 0, TaskResult(rows=sum(sizes), metrics=metrics))
    found = figures.tested(run)
    assert [(one.model, one.epoch, one.rows, one.parts) for one in found] == [
        ("m00", 3, sum(sizes), 1),
        ("m01", 1, sum(sizes), 1),
    ]
    assert all(one.metrics == metrics for one in found)
    assert figures.averaged(found) == ""


@given(SIZES, st.data())
def test_means_over_parts_are_always_said_to_be_means(sizes: list[int], data: st.DataObject) -> None:
    """Of runs in logs of older versions, from the first part that is committed on; one part is the whole split."""
    story = Story()
    run = planned(story, sizes, is_whole=False)
    accuracies = data.draw(st.lists(st.floats(0, 1), min_size=len(sizes), max_size=len(sizes)))
    for partition, (rows, accuracy) in enumerate(zip(sizes, accuracies, strict=True)):
        key = run.find(f"test-1/test/m00/p{partition}").key
        story.do(key, 0, TaskResult(rows=rows, metrics={"accuracy": accuracy}))
        assert bool(figures.averaged(figures.tested(run))) == (len(sizes) > 1)
    first = figures.tested(run)[0]
    expected = sum(r * a for r, a in zip(sizes, accuracies, strict=True)) / sum(sizes)
    assert first.metrics["accuracy"] == pytest.approx(expected)
    assert (first.parts, first.done, first.rows) == (len(sizes), len(sizes), sum(sizes))


def test_ratios_of_parts_are_those_of_the_whole_split() -> None:
    """Nothing is said to be a mean of what is none; of what is, its name."""
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


def test_a_plan_of_an_older_version_goes_on_in_parts() -> None:
    """Its event lacks the field; its tasks, committed or in flight, keep their names."""
    plan = EvaluatePlan.model_validate_json(
        '{"kind": "test", "dataset": "one-d", "fit": "fit-1", "models": {"m00": 1}, "partitions": {"0": 3, "1": 4}}'
    )
    story = Story()
    story.tell(
        RunRequested(run="test-1", request=EvaluateRequest(kind="test", fit="fit-1", split="test")),
        RunStarted(run="test-1", plan=plan),
    )
    run = story.state.runs["test-1"]
    assert list(run.tasks) == ["test-1/test/m00/p0", "test-1/test/m00/p1"]
    story.do(run.find("test-1/test/m00/p1").key, 1, TaskResult(rows=4, metrics={"auc": 0.5}))
    (found,) = figures.tested(run)
    assert (found.done, found.parts, found.metrics) == (1, 2, {"auc": 0.5})
    assert "means over 2 parts of the split" in figures.averaged([found])
