"""Rankings call equal models equal, and different models different."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import RunFinished, RunRequested, RunStarted
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.data.tables.whole_tables import write_columns
from cerebro.errors import DataError, NotFoundError
from cerebro.figures.ranking.models import rank_models
from cerebro.figures.ranking.results import RankedModel, Ranking, RankingRequest, chosen_test, ranking_request
from cerebro.figures.ranking.statistics import (
    MAX_GROUPS,
    RowGroups,
    better_models,
    bootstrap,
    holm,
    ranks,
    two_sided,
)
from tests.figures.test_tested import planned
from tests.state.stories import Story

Floats = npt.NDArray[np.float64]


def ranking(
    folder: Path, columns: dict[str, Floats], *, ids: list[int] | None = None, **options: object
) -> Ranking:
    """Write one file per model, and rank the models by accuracy."""
    request = RankingRequest.model_validate(
        {
            "files": {model: (f"{model}.arrow",) for model in columns},
            "metric": "accuracy",
            "mode": "max",
            "resamples": 1000,
            **options,
        }
    )
    for model, values in columns.items():
        rows = ids if ids is not None and model == "m01" else list(range(len(values)))
        write_columns(folder / f"{model}.arrow", {"id": rows, "accuracy": values})
    return rank_models(request, lambda name: (folder / name).open("rb"))


def right(count: int, rows: int = 1000) -> Floats:
    """The first rows are right, the others wrong."""
    return (np.arange(rows) < count).astype(np.float64)


def test_models_that_the_rows_cannot_separate_share_a_rank(tmp_path: Path) -> None:
    """Two rows of 1,000 separate nothing; 200 rows do, in both directions of the metric."""
    columns = {"m00": right(500), "m01": right(902), "m02": right(900), "m03": right(700)}
    found = ranking(tmp_path, columns)
    assert [(each.rank, each.model) for each in found.models] == [
        (1, "m01"),
        (1, "m02"),
        (3, "m03"),
        (4, "m00"),
    ]
    assert found.ties() == (("m01", "m02"),)
    assert found.sentences() == ("m01 and m02 are tied (95 %)",)
    assert str(found).splitlines()[0].split() == [
        "rank",
        "model",
        "accuracy",
        "95",
        "%",
        "interval",
        "better",
        "than",
    ]
    assert "m01 and m02 are tied (95 %)." in str(found)
    best = ranking(tmp_path, columns, mode="min")
    assert [each.model for each in best.models] == ["m00", "m03", "m02", "m01"]
    assert best.sentences()[0] == "m00 is better than all others (95 %)"


def test_intervals_contain_the_mean_and_have_the_known_width(tmp_path: Path) -> None:
    """The 95 % interval of 900 right rows of 1,000 is about 1.96 standard errors to each side."""
    (only,) = ranking(tmp_path, {"m00": right(900)}).models
    error = (0.9 * 0.1 / 1000) ** 0.5
    assert only.mean == 0.9
    assert only.low == pytest.approx(0.9 - 1.96 * error, abs=0.2 * error)
    assert only.high == pytest.approx(0.9 + 1.96 * error, abs=0.2 * error)


def test_a_ranking_is_reproducible_and_ignores_the_order_of_models(tmp_path: Path) -> None:
    """The seed alone determines the resamples."""
    random = np.random.default_rng(1)
    columns = {f"m{number:02d}": random.random(300) for number in range(4)}
    found = ranking(tmp_path, columns)
    assert ranking(tmp_path, columns) == found
    other_order = ranking(tmp_path, dict(reversed(columns.items())))
    for one, other in zip(found.models, other_order.models, strict=True):
        assert (one.rank, one.model, one.mean) == (other.rank, other.model, other.mean)
        assert (one.low, one.high) == pytest.approx((other.low, other.high))


def test_partitions_are_one_list_of_rows(tmp_path: Path) -> None:
    """A test of training data has a file for each partition."""
    values = right(30, 60)
    whole = ranking(tmp_path, {"m00": values})
    for number, rows in enumerate((range(25), range(25, 60))):
        columns = {"id": list(rows), "accuracy": values[rows.start : rows.stop]}
        write_columns(tmp_path / f"{number}.arrow", columns)
    request = RankingRequest(files={"m00": ("0.arrow", "1.arrow")}, mode="max", resamples=1000)
    assert rank_models(request, lambda name: (tmp_path / name).open("rb")) == whole


@pytest.mark.parametrize("rows", [500, 3 * MAX_GROUPS + 7])
def test_the_bootstrap_has_the_standard_error_of_a_paired_test(rows: int) -> None:
    """For single rows, and for groups of rows: a difference that is the same in most rows has a small error."""
    random = np.random.default_rng(0)
    first = random.normal(size=rows)
    values = np.stack([first, first + random.normal(scale=0.01, size=rows)], axis=1)
    groups = RowGroups(rows, seed=0)
    residuals = np.stack([groups.residuals(column)[1] for column in values.T], axis=1)
    covariance = bootstrap(residuals, rows, resamples=4000, confidence=0.95, seed=0).covariance
    found = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    expected = (values[:, 0] - values[:, 1]).std(ddof=1) / rows**0.5
    assert found**0.5 == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("distance", "freedom", "expected"),
    [
        (0.0, 19, 1.0),
        (0.5, 19, 0.622816),
        (2.0, 19, 0.0600020),
        (6.0, 19, 8.97924e-6),
        (2.0, 100, 0.0482122),
        (4.0, 100, 1.21524e-4),
        (2.0, 2047, 0.0456322),
        (6.0, 2047, 2.32730e-9),
    ],
)
def test_p_values_are_those_of_students_t(distance: float, freedom: int, expected: float) -> None:
    """Known values, up to far tails, which 499,500 pairs need."""
    assert two_sided(np.array([distance]), freedom)[0] == pytest.approx(expected, rel=0.03)


def test_holm_stops_at_the_first_p_value_that_is_too_large() -> None:
    """The example has thresholds of 0.05 / 4, / 3, / 2 and / 1."""
    assert holm(np.array([0.01, 0.04, 0.03, 0.005]), 0.05).tolist() == [True, False, False, True]
    assert holm(np.array([0.01, 0.011, 0.02, 0.049]), 0.05).tolist() == [True] * 4
    assert holm(np.array([]), 0.05).tolist() == []


P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=20)


@given(P_VALUES, st.floats(0.001, 0.2))
def test_holm_rejects_more_than_bonferroni_and_less_than_no_correction(
    p_values: list[float], level: float
) -> None:
    """And a rejected hypothesis has a smaller p-value than every other one."""
    found = holm(np.array(p_values), level)
    for p_value, is_rejected in zip(p_values, found.tolist(), strict=True):
        assert is_rejected or p_value > level / len(p_values)
        assert not is_rejected or p_value <= level
    rejected, others = np.array(p_values)[found], np.array(p_values)[~found]
    assert not len(rejected) or not len(others) or rejected.max() <= others.min()


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_no_models_of_one_rank_are_different(models: int, random: Random) -> None:
    """For any set of different pairs, also if it isn't transitive; the best model always has rank 1."""
    scores = -np.arange(models, dtype=np.float64)
    better = np.zeros((models, models), dtype=bool)
    for first in range(models):
        for second in range(first + 1, models):
            better[first, second] = random.random() < 0.5
    found = ranks(scores, better)
    assert found[0] == 1
    assert all(found[first] < found[second] for first, second in np.argwhere(better))
    assert all(found[model] > better[:, model].sum() for model in range(models))


@settings(max_examples=20)
@given(st.integers(20, 60), st.integers(2, 5), st.integers(0, 1000))
def test_equal_values_are_never_different(rows: int, models: int, seed: int) -> None:
    """Also if they are constant, which has no standard error."""
    values = np.random.default_rng(seed).integers(0, 2, rows).astype(np.float64)
    for column in (values, np.ones(rows)):
        groups = RowGroups(rows, seed)
        mean, sums = groups.residuals(column)
        residuals = np.stack([sums] * models, axis=1)
        estimates = bootstrap(residuals, rows, resamples=200, confidence=0.95, seed=seed)
        assert not better_models(np.full(models, mean), estimates, 0.95).any()


def test_requests_that_cannot_be_answered_name_the_reason(tmp_path: Path) -> None:
    """Other rows, too few rows, another metric, no direction, and a damaged file."""
    columns = {"m00": right(20, 30), "m01": right(10, 30)}
    with pytest.raises(DataError, match="m01 was tested on other rows than m00"):
        ranking(tmp_path, columns, ids=list(range(1, 31)))
    with pytest.raises(DataError, match="tested on 19 rows: a ranking needs 20"):
        ranking(tmp_path, {"m00": right(3, 19)})
    with pytest.raises(DataError, match="'auc' has no values per row: the test has them of accuracy"):
        ranking(tmp_path, columns, metric="auc")
    with pytest.raises(DataError, match="unknown whether a higher accuracy is better: pass mode='max'"):
        ranking(tmp_path, columns, mode="")
    (tmp_path / "m00.arrow").write_bytes(b"no table")
    request = RankingRequest(files={"m00": ("m00.arrow",)}, mode="max")
    with pytest.raises(DataError, match=r"m00\.arrow cannot be read"):
        rank_models(request, lambda name: (tmp_path / name).open("rb"))


def test_a_run_without_values_per_row_has_no_ranking() -> None:
    """The error names the remedy, as for an experiment without a test."""
    story = Story()
    with pytest.raises(NotFoundError, match=r"no planned test run yet: call run_test\(\)"):
        chosen_test(story.state)
    run = planned(story, [5], is_whole=True)
    assert chosen_test(story.state, "test-1") is run
    with pytest.raises(NotFoundError, match="no planned test run 'test-2'"):
        chosen_test(story.state, "test-2")
    for options, message in (
        ({"confidence": 95}, "confidence is 95"),
        ({"mode": "maximum"}, "mode is 'maximum', expected 'max' if"),
        ({"seed": -1}, "seed is -1, expected 0 or more"),
        ({}, "test-1 has not ended: compare its models when it has"),
    ):
        with pytest.raises(DataError, match=message):
            ranking_request(story.state, run, **options)
    for task in list(run.tasks.by_key.values()):
        story.do(task.key, 0, TaskResult(rows=5))
    story.append(RunFinished(run="test-1", outcome="finished"))
    with pytest.raises(DataError, match=r"no model of test-1 has metrics per row: return cerebro.PerRow"):
        ranking_request(story.state, run)


def test_models_without_values_are_named() -> None:
    """As after a failure. A later test without values does not replace this one as the default."""
    story = Story()
    story.etl()
    story.fit()
    run = planned(story, [5], is_whole=True)
    first, second = (task.key for task in run.tasks.by_key.values())
    story.do(first, 0, TaskResult(rows=5, output="m00-1.arrow"))
    story.fail(second, 0, FailureKind.USER_ERROR)
    story.append(RunFinished(run="test-1", outcome="finished"))
    request = ranking_request(story.state, run)
    assert (request.files, request.missing) == ({"m00": ("m00-1.arrow",)}, ("m01",))
    story.append(
        RunRequested(run="test-2", request=EvaluateRequest(kind="test", fit="fit-1", split="test")),
        RunStarted(run="test-2", plan=cast(EvaluatePlan, run.plan)),
    )
    assert chosen_test(story.state) is run
    assert chosen_test(story.state, "test-2").id == "test-2"
    assert chosen_test(story.state, fit="fit-1") is run
    with pytest.raises(NotFoundError, match="no planned test run yet of models of fit-2"):
        chosen_test(story.state, fit="fit-2")
    story.append(RunFinished(run="test-2", outcome="stopped"))
    with pytest.raises(DataError, match="no model of test-2 was tested completely: test the models again"):
        ranking_request(story.state, chosen_test(story.state, "test-2"))


def test_a_ranking_names_models_without_values(tmp_path: Path) -> None:
    """They have no rank."""
    found = ranking(tmp_path, {"m00": right(500)}, missing=("m01",))
    assert found.sentences() == ("m01 has no values and no rank",)
    assert found.missing == ("m01",)
    found = ranking(tmp_path, {"m00": right(500)}, missing=("m01", "m02"))
    assert found.sentences() == ("m01 and m02 have no values and no rank",)


def test_models_of_different_ranks_need_not_be_different() -> None:
    """Only the first model is better than the third one."""
    better = np.zeros((3, 3), dtype=bool)
    better[0, 2] = True
    assert ranks(np.array([3.0, 2.0, 1.0]), better).tolist() == [1, 1, 2]


def test_long_ties_name_the_first_models_only() -> None:
    """A sentence stays short for a thousand models."""
    models = tuple(
        RankedModel(rank=1, better_than=0, model=f"m{number:03d}", mean=0.5, low=0.4, high=0.6)
        for number in range(1000)
    )
    found = Ranking(
        metric="accuracy",
        mode="max",
        confidence=0.9,
        resamples=100,
        seed=0,
        rows=20,
        metrics=("accuracy",),
        models=models,
    )
    assert found.sentences() == ("m000, m001, m002, m003, m004 and 995 others are tied (90 %)",)
