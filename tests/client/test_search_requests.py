"""Search options become a request, and mistakes give one sentence with a fix."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro import (
    ASHA,
    CMA,
    PBT,
    TPE,
    Above,
    Hyperband,
    Plateau,
    Random,
    choice,
    loguniform,
    randint,
    uniform,
)
from cerebro.client.search.requests import Search, search_request
from cerebro.contract.records import CodeRecord
from cerebro.contract.search import ChoiceOf, FixedProcedure, LogUniform, OwnProcedure, SearchRequest
from cerebro.errors import SearchError, SearchSpaceError

SPACE: dict[str, Any] = {
    "lr": loguniform(1e-4, 1e-1),
    "width": choice([32, 64]),
    "batch_size": [32, 64],
    "net": "mlp",
}
NUMBERS: dict[str, Any] = {"lr": loguniform(1e-4, 1e-1), "drop": uniform(0, 0.5), "batch_size": 32}


def test_a_search_becomes_data() -> None:
    """Lists and fixed values become choices; the request survives JSON."""
    found = search_request(
        SPACE,
        search=Search(ASHA(sampler=TPE(startup=5)), stop=[Plateau(epochs=3), Above("loss", 20)]),
        samples=200,
        hours=12,
        epochs=27,
    )
    assert found == SearchRequest(
        procedure=ASHA(sampler=TPE(startup=5)),
        space={
            "lr": LogUniform(low=1e-4, high=1e-1),
            "width": ChoiceOf(values=(32, 64)),
            "batch_size": ChoiceOf(values=(32, 64)),
            "net": ChoiceOf(values=("mlp",)),
        },
        samples=200,
        stop=(Plateau(epochs=3), Above(metric="loss", limit=20.0)),
        hours=12.0,
        keep=3,
    )
    assert SearchRequest.model_validate_json(found.model_dump_json()) == found
    assert list(found.space) == list(SPACE)


@pytest.mark.parametrize(
    ("search", "samples", "procedure"),
    [
        (Random(active=4), 5, Random(active=4)),
        (Hyperband(first=2, eta=4, brackets=2), None, Hyperband(first=2, eta=4, brackets=2)),
        (Hyperband(), 100, Hyperband()),
        (ASHA(rule="promotion", brackets=2), 9, ASHA(rule="promotion", brackets=2)),
        (PBT(), None, PBT(perturb={"lr": (0.8, 1.25), "drop": (0.8, 1.25)})),
        (PBT(perturb={"lr": [0.5]}, population=4), 4, PBT(population=4, perturb={"lr": (0.5,)})),
    ],
)
def test_each_procedure_becomes_data(search: Any, samples: int | None, procedure: Any) -> None:
    """With its arguments."""
    found = search_request(NUMBERS, search=search, samples=samples, epochs=27)
    assert found is not None
    assert found.procedure == procedure


def test_a_fit_without_procedure_rules_and_hours_is_no_search() -> None:
    """With rules or hours, the request lists its models, which may be stopped."""
    grid = {"lr": [0.1, 0.01], "batch_size": 8}
    assert search_request(grid, epochs=3) is None
    found = search_request([{"batch_size": 8}], search=Search(stop=Plateau()), epochs=3)
    assert found == SearchRequest(procedure=FixedProcedure(), stop=(Plateau(),))
    found = search_request(SPACE, samples=3, hours=2, epochs=3)
    assert found == SearchRequest(procedure=FixedProcedure(), hours=2.0)


ALWAYS = {"samples": 200, "epochs": 27}


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        # rungs
        ({"search": ASHA(first=28)}, r"ASHA\(first=28\) exceeds epochs=27.*lower"),
        ({"search": Hyperband(first=28)}, r"Hyperband\(first=28\) exceeds epochs=27"),
        ({"search": ASHA(), "epochs": 1}, r"epochs=1 leaves no rung.*use search=Random\(\)"),
        ({"search": Hyperband(), "epochs": 1}, "epochs=1 leaves no rung"),
        ({"search": PBT(every=27), "samples": None}, "leaves no complete generation.*raise `epochs`"),
        # a limit is needed
        ({"search": ASHA(), "samples": None}, "has no end: set samples=N.*or limits=Limits.hours=H"),
        ({"search": Random(), "samples": None}, "has no end: set samples=N"),
        ({"search": Hyperband(), "samples": 26}, "less than the 27 models.*samples=27 or more"),
        ({"search": ASHA(eta=4), "samples": 3}, "samples=3 is less than eta=4"),
        ({"search": PBT(), "samples": 200}, r"population of 16: leave `samples` out"),
        ({"search": ASHA(), "samples": 0}, "samples=0: expected a whole number"),
        ({"search": ASHA(), "samples": 2.5}, "samples=2.5: expected a whole number"),
        # the space
        ({"search": ASHA(), "space": {"lr": [0.1], "batch_size": [8]}}, "the search space is a grid: use"),
        ({"search": ASHA(), "space": [{"lr": 0.1, "batch_size": 8}]}, "is not a dict.*to train a list"),
        ({"search": ASHA(sampler=CMA())}, "'width' is a choice: use TPE"),
        (
            {"search": ASHA(sampler=CMA()), "space": {"lr": uniform(0, 1), "batch_size": 8}},
            "at least two numeric distributions.*has 1: use TPE",
        ),
        (
            {"search": ASHA(), "space": {"o": {"lr": uniform(0, 1)}, "x": uniform(0, 1), "batch_size": 8}},
            "'o' has a distribution inside.*a top-level entry",
        ),
        (
            {"search": ASHA(), "space": {"o": [uniform(0, 1), 3], "x": uniform(0, 1), "batch_size": 8}},
            "'o' has a distribution inside",
        ),
        ({"search": ASHA(), "space": {"lr": uniform(0, 1)}}, "lacks 'batch_size'"),
        (
            {"search": ASHA(), "space": {"batch_size": uniform(1, 9)}},
            r"batch_size uses uniform\(\).*use randint\(\) or choice\(\)",
        ),
        ({"search": ASHA(), "space": {"batch_size": randint(0, 9)}}, "batch_size is 0"),
        ({"search": ASHA(), "space": {"batch_size": choice([8, "x"])}}, "batch_size is 'x'"),
        ({"search": ASHA(), "space": {"x": uniform(0, 1), "y": [], "batch_size": 8}}, "'y' has no values"),
        # perturb
        (
            {"search": PBT(perturb={"rate": [2]}), "samples": None},
            "names 'rate', but the search space has lr, width, batch_size, net",
        ),
        ({"search": PBT(perturb={"net": [2]}), "samples": None}, "'net', which is fixed"),
        (
            {"search": PBT(), "samples": None, "space": {"batch_size": choice([8, 16])}},
            "nothing to change in its clones.*name hyperparameters",
        ),
        # an instance, not a class
        ({"search": ASHA}, r"as in search=ASHA\(\)"),
        ({"search": "asha"}, r"search='asha': expected one of cerebro's procedures"),
    ],
)
def test_incompatible_options_are_named(arguments: dict[str, Any], match: str) -> None:
    """In one sentence with the fix."""
    given = {"space": SPACE, **ALWAYS, **arguments}
    with pytest.raises((SearchError, SearchSpaceError), match=match) as raised:
        search_request(given.pop("space"), **given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"keep": 0}, "keep is 0, expected the number of models .*at least 1, or None"),
        ({"keep": True}, "keep is True, expected the number of models"),
        ({"stop": "loss"}, r"stop has 'loss', expected cerebro's Plateau\(\)"),
        ({"stop": [Plateau]}, "expected cerebro's Plateau"),
        ({"procedure": "asha"}, r"search='asha': expected one of cerebro's procedures"),
    ],
)
def test_an_invalid_option_of_a_search_is_refused(options: dict[str, Any], match: str) -> None:
    """When the object is created."""
    with pytest.raises(SearchError, match=match):
        Search(**options)


class UserProcedure:
    """A user's procedure with a sampler that does not support choices."""

    sampler = CMA()

    def begin(self, facts: object) -> list[Any]:
        return []

    def on_report(self, report: object) -> list[Any]:
        return []


def test_a_procedure_is_stored_after_all_checks() -> None:
    """A refused request stores nothing."""
    stored: list[CodeRecord] = []

    def put_code(code: CodeRecord) -> CodeRecord:
        stored.append(code)
        return code

    with pytest.raises(SearchError, match="'width' is a choice"):
        search_request(SPACE, search=UserProcedure(), samples=4, epochs=3, put_code=put_code)
    assert stored == []
    found = search_request(NUMBERS, search=UserProcedure(), samples=4, epochs=3, put_code=put_code)
    assert found is not None
    assert isinstance(found.procedure, OwnProcedure)
    assert [code.sha256 for code in stored] == [found.procedure.code]
