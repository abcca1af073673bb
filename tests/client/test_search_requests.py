"""What a user writes of a search becomes a request; mistakes are told in a sentence, with what to do."""

from __future__ import annotations

from typing import Any

import pytest

import cerebro
from cerebro import (
    ASHA,
    CMA,
    GP,
    PBT,
    TPE,
    Above,
    Below,
    Hyperband,
    Median,
    Plateau,
    Random,
    choice,
    loguniform,
    randint,
    uniform,
)
from cerebro.client.search import configurations
from cerebro.client.search.requests import search_request
from cerebro.contract.records import CodeRecord
from cerebro.contract.search import ChoiceOf, FixedProcedure, LogUniform, OwnProcedure, SearchRequest
from cerebro.errors import CerebroError, SearchError, SearchSpaceError

SPACE: dict[str, Any] = {
    "lr": loguniform(1e-4, 1e-1),
    "width": choice([32, 64]),
    "batch_size": [32, 64],
    "net": "mlp",
}
NUMBERS: dict[str, Any] = {"lr": loguniform(1e-4, 1e-1), "drop": uniform(0, 0.5), "batch_size": 32}


def test_a_search_as_data() -> None:
    """Lists are choices, fixed values choices of one; it survives the way through JSON."""
    found = search_request(
        SPACE,
        search=ASHA(sampler=TPE(startup=5)),
        stop=[Plateau(epochs=3), Above("loss", 20)],
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
def test_each_procedure_as_data(search: Any, samples: int | None, procedure: Any) -> None:
    """With its arguments."""
    found = search_request(NUMBERS, search=search, samples=samples, epochs=27)
    assert found is not None
    assert found.procedure == procedure


def test_a_fit_without_procedure_rules_and_hours_is_no_search() -> None:
    """With rules or hours its models are listed, and may be stopped."""
    grid = {"lr": [0.1, 0.01], "batch_size": 8}
    assert search_request(grid, epochs=3) is None
    found = search_request([{"batch_size": 8}], stop=Plateau(), epochs=3)
    assert found == SearchRequest(procedure=FixedProcedure(), stop=(Plateau(),))
    found = search_request(SPACE, samples=3, hours=2, epochs=3)
    assert found == SearchRequest(procedure=FixedProcedure(), hours=2.0)


def test_draws_are_those_of_earlier_versions() -> None:
    """The same seed gives the values that it gave when distributions were functions."""
    space = {
        "a": uniform(0, 1),
        "c": loguniform(1e-5, 1e-1),
        "d": randint(1, 100),
        "e": choice(range(50)),
        "f": list(range(50)),
        "g": choice([(1, 2), "x", None]),
        "batch_size": 8,
    }
    rows = [
        (0.6881244510893788, 1.877724203257081e-05, 12, 13, 12, [1, 2], 8),
        (0.055859308027275456, 2.972821973230417e-05, 70, 12, 7, "x", 8),
        (0.9894587481112704, 0.0007743515905094684, 22, 7, 22, [1, 2], 8),
    ]
    found = configurations(space, samples=3, seed=1)
    assert found == [dict(zip(space, row, strict=True)) for row in rows]


ALWAYS = {"samples": 200, "epochs": 27}


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        # checkpoints
        ({"search": ASHA(), "keep": 0}, "keep=0: expected the number of models .*at least 1, or None"),
        ({"search": ASHA(), "keep": True}, "keep=True: expected the number of models"),
        # rungs
        ({"search": ASHA(first=28)}, r"ASHA\(first=28\) exceeds epochs=27.*lower"),
        ({"search": Hyperband(first=28)}, r"Hyperband\(first=28\) exceeds epochs=27"),
        ({"search": ASHA(), "epochs": 1}, r"epochs=1 leaves no rung.*use search=Random\(\)"),
        ({"search": Hyperband(), "epochs": 1}, "epochs=1 leaves no rung"),
        ({"search": PBT(every=27), "samples": None}, "leaves no complete generation.*raise `epochs`"),
        # what ends it
        ({"search": ASHA(), "samples": None}, "has no end: set samples=N.*or hours=H"),
        ({"search": Random(), "samples": None}, "has no end: set samples=N"),
        ({"search": Hyperband(), "samples": 26}, "less than the 27 models.*samples=27 or more"),
        ({"search": ASHA(eta=4), "samples": 3}, "samples=3 is less than eta=4"),
        ({"search": PBT(), "samples": 200}, r"population of 16: leave `samples` out"),
        ({"search": ASHA(), "samples": 0}, "samples=0: expected a whole number"),
        ({"search": ASHA(), "samples": 2.5}, "samples=2.5: expected a whole number"),
        ({"search": ASHA(), "hours": 0}, "hours=0: expected a positive number"),
        ({"search": ASHA(), "hours": "two"}, "hours='two': expected a positive number"),
        ({"search": ASHA(), "hours": float("nan")}, "hours=nan"),
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
        # what it is
        ({"search": ASHA}, r"as in search=ASHA\(\)"),
        ({"search": "asha"}, r"search='asha': expected one of cerebro's procedures"),
        ({"search": ASHA(), "stop": "loss"}, r"stop='loss': expected cerebro's Plateau\(\)"),
        ({"search": ASHA(), "stop": [Plateau]}, "expected cerebro's Plateau"),
    ],
)
def test_what_does_not_go_together_is_named(arguments: dict[str, Any], match: str) -> None:
    """In one sentence, with what to do."""
    given = {"space": SPACE, **ALWAYS, **arguments}
    with pytest.raises((SearchError, SearchSpaceError), match=match) as raised:
        search_request(given.pop("space"), **given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ASHA(eta=2.5), r"^ASHA\(eta=2.5\): input should be a valid integer"),  # type: ignore[arg-type]
        (lambda: Hyperband(eta=1), r"Hyperband\(eta=1\): input should be greater than or equal to 2"),
        (lambda: ASHA(first=0), r"ASHA\(first=0\): input should be greater than or equal to 1"),
        (lambda: ASHA(rule="pausing"), "'stopping' or 'promotion'"),  # type: ignore[arg-type]
        (lambda: ASHA(brackets=0), "brackets=0"),
        (lambda: ASHA(active=0), "active=0"),
        (lambda: Hyperband(brackets="some"), "brackets='some'"),  # type: ignore[arg-type]
        (lambda: Random(active=-1), "active=-1"),
        (lambda: PBT(population=1), "population=1.*equal to 2"),
        (lambda: PBT(every=0), "every=0"),
        (lambda: PBT(quantile=0), "quantile=0.*greater than 0"),
        (lambda: PBT(quantile=0.6), "quantile=0.6"),
        (lambda: PBT(perturb={"lr": 0.8}), r"perturb=\{.*: input should be an instance of Sequence"),  # type: ignore[dict-item]
        (lambda: PBT(perturb={"lr": []}), r"perturb=\{.*at least 1 item"),
        (lambda: PBT(perturb={"lr": [-1]}), r"perturb=\{.*: input should be greater than 0"),
        (lambda: PBT(perturb=["lr"]), "should be a valid dictionary"),  # type: ignore[arg-type]
        (lambda: TPE(startup=0), "startup=0"),
        (lambda: GP(startup=0), "startup=0"),
        (lambda: CMA(sigma=0), "sigma=0"),
        (lambda: CMA(population=2), "population=2.*equal to 3"),
        (lambda: ASHA(sampler=TPE), r"^ASHA\(sampler="),  # type: ignore[arg-type]
        (lambda: ASHA(sampler=Random()), r"^ASHA\(sampler="),  # type: ignore[arg-type]
        (lambda: Plateau(epochs=0), "epochs=0"),
        (lambda: Plateau(least=-1), "least=-1"),
        (lambda: Median(grace=0), "grace=0"),
        (lambda: Median(least=0), "least=0"),
        (lambda: Above("", 1), r"\(metric="),
        (lambda: Above(20, "loss"), r"\(metric="),  # type: ignore[arg-type]
        (lambda: Below("accuracy", float("nan")), "limit=nan.*finite number"),
        (lambda: uniform(0, float("inf")), "finite"),
        (lambda: randint(0, 2.5), "whole numbers"),
        (lambda: choice([print]), r"use numbers, text, booleans"),
    ],
)
def test_each_argument_is_checked_where_it_is_written(make: Any, match: str) -> None:
    """Not when the run is asked for."""
    with pytest.raises(CerebroError, match=match):
        make()


def test_all_of_it_is_had_from_the_package() -> None:
    """As a notebook imports it."""
    assert cerebro.ASHA is ASHA
    assert {"Random", "PBT", "CMA", "Median"} <= set(cerebro.__all__)


class Own:
    """A procedure of a user, whose sampler cannot draw choices."""

    sampler = CMA()

    def begin(self, facts: object) -> list[Any]:
        return []

    def told(self, report: object) -> list[Any]:
        return []


def test_a_procedure_is_stored_once_all_is_found_to_be_right() -> None:
    """Nothing stays in the store of what was refused."""
    stored: list[CodeRecord] = []

    def put_code(code: CodeRecord) -> CodeRecord:
        stored.append(code)
        return code

    with pytest.raises(SearchError, match="'width' is a choice"):
        search_request(SPACE, search=Own(), samples=4, epochs=3, put_code=put_code)
    assert stored == []
    found = search_request(NUMBERS, search=Own(), samples=4, epochs=3, put_code=put_code)
    assert found is not None
    assert isinstance(found.procedure, OwnProcedure)
    assert [code.sha256 for code in stored] == [found.procedure.code]
