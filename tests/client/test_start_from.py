"""`Search(start_from=...)`: one clear error for bad input, in notebooks and experiment files."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro import ASHA, CMA, PBT, TPE, Earlier, Plateau, Random, Search, loguniform, uniform
from cerebro.client.experiment_file.schema import ExperimentFile
from cerebro.client.requests.run_requests import FitOptions, resolve_fit
from cerebro.client.search.requests import search_request
from cerebro.contract.search import SearchRequest
from cerebro.errors import SearchError

SPACE = {"lr": loguniform(1e-3, 1e-1), "drop": uniform(0, 0.5), "batch_size": 32}


def request_of(search: Search, space: Any = SPACE, samples: int | None = 9) -> SearchRequest | None:
    return search_request(space, search=search, samples=samples, epochs=9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"procedure": ASHA(), "start_from": "digits/fit-1"},
            r"ASHA\(\) suggests values at random: set a sampler",
        ),
        (
            {"procedure": PBT(population=9), "start_from": "digits/fit-1"},
            r"PBT\(\) suggests values at random",
        ),
        ({"stop": Plateau(), "start_from": "digits/fit-1"}, "trains its configurations as listed"),
        ({"start_from": "digits/fit-1"}, "trains its configurations as listed"),
    ],
)
def test_a_search_that_learns_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    """Earlier values would have no effect."""
    grid = options.get("procedure") is None
    with pytest.raises(SearchError, match=message):
        request_of(Search(**options), {"lr": [0.1], "batch_size": 32} if grid else SPACE, None if grid else 9)


@pytest.mark.parametrize(
    ("start_from", "message"),
    [
        ("digits", "expected EXPERIMENT/RUN, such as digits/fit-1"),
        ("digits/", "expected EXPERIMENT/RUN"),
        ("Digits/fit-1", "expected EXPERIMENT/RUN"),
        (["digits/fit-1", "digits/fit-1"], "names digits/fit-1 twice"),
        (3, r'start_from is 3, expected names of ended fits, such as \["digits/fit-1"\]'),
        ([3], r"start_from is \[3\]"),
    ],
)
def test_bad_names_are_refused_at_once(start_from: Any, message: str) -> None:
    """Before the fit is requested."""
    with pytest.raises(SearchError, match=message):
        Search(ASHA(sampler=TPE()), start_from=start_from)


@pytest.mark.parametrize("procedure", [ASHA(sampler=TPE()), Random(sampler=CMA())])
def test_a_request_names_its_earlier_fits(procedure: Any) -> None:
    """A request without any is written as before, so older versions read it."""
    start_from: list[str | Earlier] = ["digits/fit-1", Earlier("digits/fit-2", any_data=True)]
    request = request_of(Search(procedure, start_from=start_from))
    assert request is not None
    assert request.start_from == (Earlier("digits/fit-1"), Earlier("digits/fit-2", any_data=True))
    assert SearchRequest.model_validate_json(request.model_dump_json()) == request
    plain = request_of(Search(procedure))
    assert plain is not None
    assert "start_from" not in plain.model_dump_json()


def test_an_experiment_file_names_earlier_fits() -> None:
    """As texts, or as calls for other code or data."""
    fit = {
        "spec": "m:S",
        "space": {"lr": "loguniform(0.001, 0.1)", "batch_size": 32},
        "metric": "loss",
        "mode": "min",
        "search": "ASHA(sampler=TPE())",
        "samples": 9,
        "epochs": 9,
        "start_from": ["digits/fit-1", 'Earlier("digits/fit-2", any_code=True)'],
    }
    file = ExperimentFile.model_validate(
        {"name": "a", "locators": {"train": {"metadata": "a.csv"}}, "etl": {"spec": "m:E"}, "fit": fit}
    )
    assert file.fit is not None
    options = FitOptions.from_flat(file.fit.explicit)
    request, _ = resolve_fit(None, file.fit.space, options, has_validation_split=True)
    assert request is not None
    assert request.start_from == (Earlier("digits/fit-1"), Earlier("digits/fit-2", any_code=True))
