"""User-defined search procedures are checked and sent as code."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cerebro import ASHA, TPE, Above, Search, SubEpochSpec, loguniform
from cerebro.client.requests.run_requests import FitOptions, resolve_fit
from cerebro.client.search.requests import search_request
from cerebro.contract.records import CodeRecord
from cerebro.contract.search import OwnProcedure, RandomSampler
from cerebro.errors import MetricError, SearchError
from cerebro.search import Action, Facts, Procedure, Report
from cerebro.usercode.encoding import decode
from tests.search.own_procedures import Halving

SPACE = {"lr": loguniform(1e-4, 1e-1), "batch_size": 32}


class Plain:
    """A procedure without a base class."""

    def begin(self, facts: Facts) -> list[Action]:
        return []

    def on_report(self, report: Report) -> list[Action]:
        return []


@pytest.mark.parametrize("own", [Plain(), Halving(models=5)])
def test_an_own_procedure_is_sent_as_code(own: Any) -> None:
    """The request has the hash; the stored object keeps its fields."""
    stored: list[CodeRecord] = []

    def put_code(code: CodeRecord) -> CodeRecord:
        stored.append(code)
        return code

    request = search_request(SPACE, search=own, epochs=9, put_code=put_code, author="ada")
    assert request is not None
    (code,) = stored
    assert request.procedure == OwnProcedure(code=code.sha256, name=type(own).__name__)
    assert request.sampler == RandomSampler()
    assert code.author == "ada"
    assert vars(decode(code.encoded)) == vars(own)


def test_a_refused_fit_stores_nothing() -> None:
    """Also if a rule names an unknown metric."""

    class Training(SubEpochSpec):
        def create_models(self, hyperparams: Any) -> list[Any]:
            return []

        def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
            return {"loss": 1.0}

    def put_code(code: CodeRecord) -> CodeRecord:
        pytest.fail("code was stored")

    options = FitOptions(search=Search(Plain(), stop=Above("los", 1)), metric="loss", mode="min")
    with pytest.raises(MetricError, match=r"in Above\('los', 1\)"):
        resolve_fit(Training(), SPACE, options, has_validation_split=False, put_code=put_code)


def test_an_own_procedure_may_name_a_sampler_and_a_space_without_suggestions() -> None:
    """Its sampler makes the suggestions; a procedure that adds its own models needs no distributions."""
    procedure = Halving()
    procedure.sampler = TPE(startup=3)
    request = search_request({"lr": 0.1, "batch_size": 32}, search=procedure, epochs=9)
    assert request is not None
    assert request.sampler == TPE(startup=3)
    procedure.sampler = "tpe"
    with pytest.raises(SearchError, match=r"Halving\(sampler='tpe'\): expected one of cerebro's samplers"):
        search_request(SPACE, search=procedure, epochs=9)


class MisspeltMethod:
    """A procedure with a misspelt method."""

    def begin(self, facts: Facts) -> list[Action]:
        return []

    def report(self, report: Report) -> list[Action]:
        return []


class Forgot(Procedure):
    """Has no `on_report`."""

    def begin(self, facts: Facts) -> list[Action]:
        return []


class Short(Plain):
    """Has a wrong signature."""

    def on_report(self) -> list[Action]:  # type: ignore[override]
        return []


class Yielding(Plain):
    """`on_report` is a generator, so calling it runs nothing."""

    def on_report(self, report: Report) -> Any:
        yield from ()


class Locked(Plain):
    """Contains an object that cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            3,
            r"search=3: expected one of cerebro's procedures, as in search=ASHA\(\), or an object with the methods ",
        ),
        (Plain, r"search=Plain is a class, expected an object: pass Plain\(\) instead of Plain"),
        (
            ASHA,
            r"search=ASHA is a class, expected an object: expected one of cerebro's procedures, as in search=ASHA",
        ),
        (MisspeltMethod(), r"MisspeltMethod has no method 'on_report': define on_report\(self, report\)"),
        (
            Short(),
            r"Short.on_report cannot be called as workers call it .*: expected on_report\(self, report\), found",
        ),
        (
            Yielding(),
            r"Yielding.on_report has a `yield`, so a call does not run it: expected on_report\(self, report\) that",
        ),
        (
            Locked(),
            r"Locked cannot be sent to the workers: attribute 'lock' .*create other objects in begin\(\)",
        ),
    ],
)
def test_an_invalid_procedure_is_reported_before_anything_is_sent(wrong: Any, sentence: str) -> None:
    """One sentence each with the fix."""

    def put_code(code: CodeRecord) -> CodeRecord:
        raise AssertionError(f"{code.class_name} was sent")

    with pytest.raises(SearchError, match=sentence):
        search_request(SPACE, search=wrong, epochs=9, put_code=put_code)


def test_a_missing_method_is_reported() -> None:
    """`Procedure`'s own method would never request an action."""
    with pytest.raises(
        SearchError, match=r"Forgot has no method 'on_report': define on_report\(self, report\)"
    ):
        search_request(SPACE, search=Forgot(), epochs=9)  # type: ignore[abstract]
