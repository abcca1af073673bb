"""Objectives and constraints of `run_fit`: mistakes are reported before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro import CMA, Random, SubEpochSpec, uniform
from cerebro.client.requests.run_requests import FitOptions, fit_request, resolve_fit
from cerebro.contract.runs import Constraint, FitRequest, Goal, Mode
from cerebro.errors import CerebroError, MetricError

SHA = "0" * 64
BOTH: dict[str, Mode] = {"accuracy": "max", "train_s": "min"}


class Training(SubEpochSpec):
    """A spec that returns two metrics."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        return []

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        return {"loss": 0.0}

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        return {"loss": 0.0, "accuracy": 1.0}


def requested(*, has_validation_split: bool = True, space: Any = None, **options: Any) -> FitRequest:
    """Return the request of a fit."""
    found, space = FitOptions(**options), space or {"lr": [0.1, 0.2], "batch_size": 2}
    search, models = resolve_fit(Training(), space, found, has_validation_split=has_validation_split)
    return fit_request(SHA, search, models, found, space=space, technique_fields={}, goal=Goal())


def test_objectives_become_data() -> None:
    """The first objective is the metric, and the request survives JSON in the given order."""
    found = requested(objectives=BOTH, constraints=["loss<=0.5", " model_bytes  <  2e6 "])
    assert (found.metric, found.mode, found.objectives) == ("accuracy", "max", BOTH)
    assert found.constraints == (
        Constraint(name="loss", operator="<=", limit=0.5),
        Constraint(name="model_bytes", operator="<", limit=2e6),
    )
    assert found.compared_names == ("accuracy", "train_s", "loss", "model_bytes")
    read = FitRequest.model_validate_json(found.model_dump_json())
    assert list(read.objectives) == ["accuracy", "train_s"]
    assert read == found


def test_one_objective_is_a_metric() -> None:
    """The request is the same as with metric and mode, so old and new logs are equal."""
    one = requested(objectives={"accuracy": "max"})
    assert one == requested(metric="accuracy", mode="max")
    assert not {"objectives", "constraints"} & one.model_dump().keys()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"objectives": BOTH, "metric": "loss"}, "either the objectives or one metric"),
        ({"objectives": {}}, "give a dict of names and directions"),
        ({"objectives": ["accuracy"]}, "give a dict of names and directions"),
        ({"objectives": {"accuracy": "up"}}, "direction of the objective 'accuracy' is 'up'"),
        ({"objectives": {3: "min"}}, "an objective is named 3"),
        ({"objectives": {"train_s": "min", "accuracy": "max"}}, "put 'accuracy' first"),
        ({"metric": "train_s", "mode": "min"}, "put a metric of your spec first"),
        ({"objectives": {"accuracy": "max", "recall": "max"}}, "'recall' is not returned by Training.test()"),
        ({"constraints": ["latency_ms <= 20"]}, "in the constraint 'latency_ms <= 20'"),
        ({"constraints": ["loss == 1"]}, "the operator '=='"),
        ({"constraints": ["loss =< 1"]}, "the operator '=<'"),
        ({"constraints": ["loss <= low"]}, "compares with 'low': give a finite number"),
        ({"constraints": ["loss <= nan"]}, "compares with 'nan'"),
        ({"constraints": ["loss <= "]}, "compares with ''"),
        ({"constraints": ["loss"]}, "is no comparison"),
        ({"constraints": [3]}, "3 is no comparison"),
        ({"constraints": "loss <= 1"}, "give a list of texts"),
        ({"constraints": ["loss <= 1", "loss < 2"]}, "keep one"),
        ({"constraints": ["loss <= 1", "loss >= 2"]}, "no value can meet both"),
        ({"constraints": ["loss < 1", "loss >= 1"]}, "no value can meet both"),
    ],
    ids=str,
)
def test_a_mistake_is_one_sentence_with_a_remedy(options: dict[str, Any], match: str) -> None:
    """Metrics are checked against the source code of the spec."""
    plain: dict[str, Any] = (
        {} if "objectives" in options or "metric" in options else {"metric": "accuracy", "mode": "max"}
    )
    with pytest.raises(MetricError) as raised:
        requested(**plain, **options)
    assert match in str(raised.value)


def test_a_measure_needs_its_rows_and_its_name() -> None:
    """`test_row_s` needs a validation split; a metric may not have the name of a measure in use."""
    with pytest.raises(MetricError, match="no split 'valid'"):
        requested(objectives={"loss": "min", "test_row_s": "min"}, has_validation_split=False)

    class Timed(Training):
        def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
            return {"accuracy": 1.0, "train_s": 2.0}

    with pytest.raises(MetricError, match="also a measure of the platform: rename"):
        resolve_fit(
            Timed(),
            {"batch_size": [2]},
            FitOptions(objectives=BOTH),
            has_validation_split=True,
        )


def test_two_bounds_of_one_metric_are_a_range() -> None:
    """An upper and a lower limit may be equal."""
    assert len(requested(metric="loss", mode="min", constraints=["loss >= 1", "loss <= 1"]).constraints) == 2


def test_samplers_for_one_objective_are_refused() -> None:
    """CMA-ES needs an order by one number."""
    space = {"lr": uniform(0, 1), "drop": uniform(0, 1), "batch_size": 2}
    with pytest.raises(CerebroError, match=r"sampler CMA\(\) uses one objective"):
        requested(space=space, samples=4, search=Random(sampler=CMA()), objectives=BOTH)
