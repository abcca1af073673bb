"""Plans of requested runs, and error messages for impossible requests."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from cerebro.commands.planning import plan_evaluation, plan_fit
from cerebro.contract.events import RunFinished, RunRequested, RunStarted
from cerebro.contract.parallel_plans import SINGLE, TechniqueChoice
from cerebro.contract.runs import EtlRequest, EvaluateRequest, FitRequest
from cerebro.contract.search import ChoiceOf, Distribution, RandInt, Random, SearchRequest
from cerebro.contract.tasks.checkpoints import FittedRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.contract.trials import DeviceKind
from cerebro.errors import CerebroError, DataError, NotFoundError, SearchSpaceError, SpecError
from cerebro.techniques.named import KINDS
from tests.state.stories import DATASET, SHA, Story, etl_plan, joined


def fit(*models: dict[str, Any], **changes: Any) -> FitRequest:
    given: dict[str, Any] = {"epochs": 1, "metric": "loss", "mode": "min"}
    return FitRequest.model_validate({"code": SHA, "models": models, **given, **changes})


@pytest.fixture
def story() -> Story:
    """Two workers with ten training rows and four validation rows each."""
    story = Story()
    story.etl(splits={"train": 10, "valid": 4, "test": 6})
    return story


def test_a_fit_needs_training_rows() -> None:
    """The error says that the data set has only test rows."""
    story = Story()
    story.etl(splits={"test": 10})
    with pytest.raises(DataError, match="no training rows"):
        plan_fit(story.state, fit({"batch_size": 1}), {})


@pytest.mark.parametrize(
    ("size", "match"),
    [
        (None, "no hyperparameter 'batch_size'"),
        (0, "0, expected a positive integer"),
        (-1, "-1, expected a positive integer"),
        (1.5, "1.5, expected"),
        ("8", "'8', expected"),
        (True, "True, expected"),
        ([8], r"\[8\], expected"),
        (11, r"11 of model m01 is larger than partition 0, which has 10 rows: choose at most 10"),
    ],
)
def test_an_invalid_batch_size_is_named(story: Story, size: object, match: str) -> None:
    """The error names the model, its value and a valid value."""
    bad = {} if size is None else {"batch_size": size}
    with pytest.raises(SearchSpaceError, match=match) as caught:
        plan_fit(story.state, fit({"batch_size": 10}, bad), {})
    assert "m01" in str(caught.value)


@pytest.mark.parametrize(
    ("among", "size"),
    [
        (ChoiceOf(values=(64, 10)), 0),
        (ChoiceOf(values=(64, 11)), 11),
        (RandInt(low=10, high=64), 0),
        (RandInt(low=12, high=64), 12),
    ],
)
def test_a_search_without_a_valid_batch_size_is_refused(story: Story, among: Distribution, size: int) -> None:
    """A search with one valid batch size is accepted."""
    search = SearchRequest(procedure=Random(), space={"batch_size": among}, hours=1)
    if not size:
        assert plan_fit(story.state, fit(search=search), {}).models == {}
        return
    match = f"batch_size {size} of the search space is larger than partition 0, which has 10 rows: choose at most 10"
    with pytest.raises(SearchSpaceError, match=match):
        plan_fit(story.state, fit(search=search), {})


def test_an_unknown_scheduler_is_refused_with_the_valid_names(story: Story) -> None:
    """There is no fallback to another scheduler."""
    with pytest.raises(SearchSpaceError, match=r"'best'.*random"):
        plan_fit(story.state, fit({"batch_size": 1}, scheduler="best"), {})


# --- Test and prediction runs ---


@pytest.fixture
def fitted(story: Story) -> Story:
    """Two models with two epochs; the best is m01 after its first epoch."""
    story.fit(models=3)
    for model, losses in (("m00", (5.0, 4.0)), ("m01", (1.0, 2.0))):
        for epoch, loss in enumerate(losses, start=1):
            story.epoch(epoch, model=model, loss=loss)
    story.train(1, 0, model="m02")
    return story


def evaluate(**given: Any) -> EvaluateRequest:
    return EvaluateRequest.model_validate({"kind": "test", "fit": "fit-1", "split": "test", **given})


def test_the_default_model_of_a_test_is_the_best_at_its_best_epoch(fitted: Story) -> None:
    """The plan covers each partition of the split."""
    plan = plan_evaluation(fitted.state, evaluate())
    assert plan.models == {"m01": 1}
    assert plan.partitions == {0: 6, 1: 6}
    assert (plan.kind, plan.dataset, plan.fit) == ("test", DATASET, "fit-1")


@pytest.mark.parametrize(
    ("kind", "split", "is_whole"),
    [("test", "test", True), ("test", "valid", True), ("test", "train", False), ("predict", "test", False)],
)
def test_a_test_reads_the_whole_split_if_a_worker_can(
    fitted: Story, kind: str, split: str, is_whole: bool
) -> None:
    """Training data is only on workers' own volumes, and predictions of partitions are concatenated."""
    assert plan_evaluation(fitted.state, evaluate(kind=kind, split=split)).is_whole == is_whole


@pytest.mark.parametrize(
    ("request_", "error", "match"),
    [
        (evaluate(fit="fit-7"), NotFoundError, r"'fit-7'.*there is: fit-1"),
        (evaluate(fit="etl-1"), NotFoundError, r"'etl-1'.*there is: fit-1"),
        (evaluate(models=("m09",)), NotFoundError, r"'m09'.*m00, m01, m02"),
        (evaluate(models=("m02",)), NotFoundError, r"'m02'.*no completed epoch"),
        (evaluate(split="predict"), DataError, r"no rows of split 'predict'.*give a new experiment"),
    ],
)
def test_an_impossible_evaluation_is_refused_with_the_reason(
    fitted: Story, request_: EvaluateRequest, error: type[CerebroError], match: str
) -> None:
    """The error suggests alternatives."""
    with pytest.raises(error, match=match):
        plan_evaluation(fitted.state, request_)


# --- Parallel plans ---


def labels(devices: dict[str, int], **changes: Any) -> list[str]:
    """Return the labels of a fit's parallel plans on these workers."""
    story = Story()
    story.etl(splits={"train": 10})
    return [
        parallel_plan.label
        for parallel_plan in plan_fit(story.state, fit({"batch_size": 1}, **changes), devices).parallel_plans
    ]


@pytest.mark.parametrize(
    ("kinds", "is_offloaded"), [(["cpu", "cpu"], False), (["cpu", "gpu"], True), (["cpu", None], True)]
)
def test_offloading_is_chosen_only_if_a_device_has_its_own_memory(
    kinds: list[Any], is_offloaded: bool
) -> None:
    """A user may request it on a CPU. Unknown devices may benefit, so it is included."""
    story = Story(workers=0)
    for number, kind in enumerate(kinds):
        device = None if kind is None else DeviceKind(kind=kind, name="one")
        story.append(joined(number).model_copy(update={"device": device}))
    story.etl(splits={"train": 10})
    techniques = {
        parallel_plan.technique
        for parallel_plan in plan_fit(story.state, fit({"batch_size": 1}), {"worker-0": 2}).parallel_plans
    }
    assert ("offload" in techniques) is is_offloaded
    assert {"single", "checkpointing", "ddp", "fsdp"} <= techniques
    named = fit({"batch_size": 1}, techniques=[TechniqueChoice(name="offload", most=1, processes="one")])
    assert [
        parallel_plan.label for parallel_plan in plan_fit(story.state, named, {"worker-0": 2}).parallel_plans
    ] == ["offload"]


def test_automatic_parallel_plans_are_valid_for_their_technique() -> None:
    """Their parameters are valid, with suitable devices and the stated number of processes."""
    story = Story()
    story.etl(splits={"train": 10})
    for gpus in ([1, 2, 4], [2, 4]):
        for parallel_plan in plan_fit(
            story.state, fit({"batch_size": 1}, gpus=gpus), {"worker-0": 4}
        ).parallel_plans:
            kind = KINDS[parallel_plan.technique]
            assert kind.checked(parallel_plan.params) == parallel_plan.params
            assert kind.least <= parallel_plan.size <= kind.most
            assert (kind.processes, kind.version, kind.keeps_numerics) == (
                parallel_plan.processes,
                parallel_plan.version,
                True,
            )
    assert SINGLE in plan_fit(story.state, fit({"batch_size": 1}), {}).parallel_plans


def test_a_partition_on_a_worker_with_too_few_devices_is_refused() -> None:
    """Otherwise the run would wait forever."""
    with pytest.raises(
        SpecError, match=r"partition 1 .* fewer than 2 devices \(worker-1: 1\).* such as 'single'"
    ):
        labels({"worker-0": 2, "worker-1": 1}, gpus=[2])
    both = labels({"worker-0": 2, "worker-1": 1}, gpus=[1, 2])
    assert both[0] == "single"


def test_a_fit_with_more_devices_than_any_worker_is_refused() -> None:
    """The client checks the same and gives the same message."""
    with pytest.raises(SpecError, match=r"gpus names 4, .* choose at most 2\. .*: worker-0: 2"):
        labels({"worker-0": 2}, gpus=[2, 4])


def preprocess_again(story: Story, *, fingerprint: str = SHA, **changes: Any) -> None:
    """Finish etl-2, which makes another data set: 3 test rows in each partition."""
    plan = etl_plan(2, {"train": 10, "test": 3}).model_copy(update={"dataset": "one-e", **changes})
    request_ = EtlRequest(code=SHA, code_fingerprint=fingerprint)
    story.append(RunRequested(run="etl-2", request=request_), RunStarted(run="etl-2", plan=plan))
    for key in [task.key for task in story.state.runs["etl-2"].tasks.by_key.values()]:
        story.do(key, key.partition or 0, TaskResult(rows=3))
    story.append(RunFinished(run="etl-2", outcome="finished"))


def fitted_ref(checksum: str) -> FittedRef:
    return FittedRef(name="datasets/one-d/fitted/etl-1-a1.pickle", checksum=checksum, size=1)


@pytest.mark.parametrize("kind", ["test", "predict"])
def test_an_evaluation_reads_the_rows_of_the_newest_etl_run(fitted: Story, kind: str) -> None:
    """The same ETL spec and result of `fit` prepare new rows in the same way, so changed files are read."""
    fitted.append(RunFinished(run="fit-1", outcome="finished"))
    preprocess_again(fitted)
    fitted.state.datasets[DATASET].fitted = fitted_ref("a")
    fitted.state.datasets["one-e"].fitted = fitted_ref("a")
    plan = plan_evaluation(fitted.state, evaluate(kind=kind))
    assert (plan.dataset, plan.partitions, plan.models) == ("one-e", {0: 3, 1: 3}, {"m01": 1})


@pytest.mark.parametrize(
    ("fingerprint", "checksum", "difference"),
    [
        ("1" * 64, "a", "another ETL spec or other package versions"),
        (SHA, "b", "another result of ETLSpec.fit"),
    ],
)
def test_an_evaluation_refuses_rows_that_were_prepared_differently(
    fitted: Story, fingerprint: str, checksum: str, difference: str
) -> None:
    """The error names the model, both data sets and ETL runs, and both remedies."""
    fitted.append(RunFinished(run="fit-1", outcome="finished"))
    preprocess_again(fitted, fingerprint=fingerprint)
    fitted.state.datasets[DATASET].fitted = fitted_ref("a")
    fitted.state.datasets["one-e"].fitted = fitted_ref(checksum)
    match = (
        f"model m01 of fit-1 .*etl-2 made one-e with {difference} than etl-1, which made one-d, the data set of fit-1. "
        "Call run_fit .*repeat etl-1"
    )
    with pytest.raises(DataError, match=match):
        plan_evaluation(fitted.state, evaluate())
    # The repeated run finds its data set again.
    first = fitted.state.runs["etl-1"]
    assert first.plan is not None
    fitted.append(RunRequested(run="etl-3", request=first.request), RunStarted(run="etl-3", plan=first.plan))
    fitted.append(RunFinished(run="etl-3", outcome="finished"))
    assert plan_evaluation(fitted.state, evaluate()).dataset == DATASET


@pytest.mark.parametrize(
    ("before", "after", "match"),
    [
        ("0" * 16, "1" * 16, "one-e with other `misc` files than etl-1, .* on the newest data set$"),
        (None, "1" * 16, "one-e with possibly other `misc` files, .*repeat etl-1"),
        (None, None, "one-e with possibly other `misc` files, .*repeat etl-1"),
        ("1" * 16, "1" * 16, ""),
        (None, "", ""),
    ],
)
def test_an_evaluation_refuses_rows_with_other_misc_files(
    fitted: Story, before: str | None, after: str | None, match: str
) -> None:
    """Another vocabulary gives other inputs. A changed file has another version forever: only a new fit helps."""
    fitted.append(RunFinished(run="fit-1", outcome="finished"))
    preprocess_again(fitted, misc=after)
    first = fitted.state.datasets[DATASET]
    first.plan = first.plan.model_copy(update={"misc": before})
    with pytest.raises(DataError, match=match) if match else nullcontext():
        assert plan_evaluation(fitted.state, evaluate()).dataset == "one-e"
    # Version 0.3.0 did not record the files; an experiment without any reads all its data sets.
    if None in (before, after):
        assert plan_evaluation(fitted.state, evaluate(), has_misc=False).dataset == "one-e"
