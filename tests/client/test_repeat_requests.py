"""`Repeat` in requests: one clear error for bad input, in notebooks and experiment files."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro import ASHA, Repeat, choice, loguniform
from cerebro.client.experiment_file.schema import ExperimentFile
from cerebro.client.requests.run_requests import FitOptions, resolve_fit
from cerebro.contract.runs import FitRequest
from cerebro.errors import SearchError

GRID = {"lr": [0.1, 0.01], "batch_size": 32}


def check(space: Any, **options: Any) -> None:
    resolve_fit(
        None, space, FitOptions(metric="loss", mode="min", epochs=9, **options), has_validation_split=True
    )


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (GRID, {"repeats": Repeat(top=3)}, "repeats more models than the 2 of the run: set top=2 or less"),
        (
            {"lr": loguniform(0.01, 0.1), "batch_size": 32},
            {"search": ASHA(), "samples": 6, "repeats": Repeat(top=7)},
            "more models than the 6",
        ),
        ({**GRID, "seed": [1, 2]}, {"repeats": Repeat(top=1)}, "has the hyperparameter 'seed'"),
        ([{**GRID, "lr": 0.1, "seed": 1}], {"repeats": Repeat(top=1)}, "has the hyperparameter 'seed'"),
        (GRID, {"repeats": 3}, r"expected an object such as Repeat\(top=3, seeds=5\)"),
    ],
)
def test_bad_repeats_are_refused_before_anything_runs(
    space: Any, options: dict[str, Any], message: str
) -> None:
    """The message says what to change."""
    with pytest.raises(SearchError, match=message):
        check(space, **options)


@pytest.mark.parametrize(
    "arguments", [{"seeds": 1}, {"top": 0}, {"seeds": 2.5}, {"seeds": 1000}, {"tops": 1}]
)
def test_impossible_numbers_are_refused(arguments: dict[str, Any]) -> None:
    """The message names the argument."""
    with pytest.raises(SearchError, match=next(iter(arguments))):
        Repeat(**arguments)


def test_valid_repeats_pass() -> None:
    """Also of a search without a number of samples."""
    check(GRID, repeats=Repeat(top=2, seeds=2))
    check({"lr": choice(0.1, 0.2), "batch_size": 32}, repeats=Repeat(top=2))


def test_an_experiment_file_has_repeats() -> None:
    """As a call, like search procedures."""
    fit = {"spec": "m:S", "space": GRID, "metric": "loss", "mode": "min", "repeats": "Repeat(top=2, seeds=3)"}
    file = ExperimentFile.model_validate(
        {"name": "a", "locators": {"train": {"metadata": "a.csv"}}, "etl": {"spec": "m:E"}, "fit": fit}
    )
    assert file.fit is not None
    assert file.fit.explicit["repeats"] == Repeat(top=2, seeds=3)


def test_a_request_without_repeats_is_written_as_before() -> None:
    """Older versions read it."""
    request = FitRequest(code="0" * 64, models=({"batch_size": 1},), epochs=1, metric="loss", mode="min")
    assert "repeats" not in request.model_dump_json()
    given = request.model_copy(update={"repeats": Repeat()})
    assert FitRequest.model_validate_json(given.model_dump_json()) == given
