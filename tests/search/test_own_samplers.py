"""A user's own sampler is checked, sent as code, and runs on workers only."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cerebro import ASHA, PBT, choice, loguniform, randint, uniform
from cerebro.client.search.requests import search_request
from cerebro.contract.records import CodeRecord, Hyperparameters
from cerebro.contract.search import OwnSampler, RandomSampler, Space
from cerebro.errors import SearchError
from cerebro.search import Past
from cerebro.search.samplers import suggest
from cerebro.search.suggestions import suggestions_request, values_for
from cerebro.testing import check_sampler
from cerebro.usercode.encoding import decode

SPACE = {
    "lr": loguniform(1e-4, 1e-1),
    "layers": randint(1, 4),
    "act": choice(["relu", "tanh"]),
    "batch_size": 32,
}


class Coarse:
    """Suggests the ends of each range."""

    def __init__(self, side: int = 0) -> None:
        self.side = side

    def suggest(
        self, space: Mapping[str, Any], history: Sequence[Past], numbers: Sequence[int], seed: int
    ) -> list[Any]:
        return [self.one(space, random.Random(f"{seed}/{number}")) for number in numbers]

    def one(self, space: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        return {
            name: rng.choice(each.values if each.kind == "choice" else [each.low, each.high])
            for name, each in space.items()
        }


class Irregular(Coarse):
    """Has random numbers of its own."""

    def one(self, space: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        return super().one(space, random.Random())


class Short(Coarse):
    """Forgets a suggestion."""

    def suggest(self, space: Any, history: Any, numbers: Any, seed: int) -> list[Any]:
        return super().suggest(space, history, numbers, seed)[1:]


class Outside(Coarse):
    """Suggests a value outside the space."""

    def one(self, space: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        return {**super().one(space, rng), "layers": 5}


class Forgetful(Coarse):
    """Forgets a hyperparameter."""

    def one(self, space: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        return {"lr": 0.1}


class Trusting(Coarse):
    """Fails without a measured model."""

    def suggest(self, space: Any, history: Any, numbers: Any, seed: int) -> list[Any]:
        best = max(history, key=lambda past: max(past.scores.values()))
        return [best.hyperparams for _ in numbers]


class Complete(Coarse):
    """Expects all hyperparameters in each model of the history."""

    def suggest(self, space: Any, history: Sequence[Past], numbers: Any, seed: int) -> list[Any]:
        for past in history:
            assert float(past.hyperparams["lr"]) > 0, "no condition here"  # type: ignore[arg-type]
            assert past.hyperparams["act"] is not None
        return super().suggest(space, history, numbers, seed)


class Frugal(Coarse):
    """Suggests only what applies."""

    def one(self, space: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, each in space.items():
            if each.applies(found):
                found[name] = rng.choice(each.values if each.kind == "choice" else [each.low, each.high])
        return found


class Negligent(Frugal):
    """Never suggests a conditional hyperparameter."""

    def one(self, space: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        return super().one({name: each for name, each in space.items() if not each.when}, rng)


class Few(Coarse):
    """Has a wrong signature."""

    def suggest(self, space: Any) -> list[Any]:  # type: ignore[override]
        return []


def requested(search: Any) -> tuple[Any, list[CodeRecord]]:
    stored: list[CodeRecord] = []

    def put_code(code: CodeRecord) -> CodeRecord:
        stored.append(code)
        return code

    request = search_request(SPACE, search=search, samples=20, epochs=9, put_code=put_code, author="ada")
    assert request is not None
    return request, stored


def test_an_object_is_sent_as_code() -> None:
    """The request has its hash and name; workers decode it with its fields."""
    request, (code,) = requested(ASHA(eta=2, sampler=Coarse(side=3)))
    assert request.procedure == ASHA(eta=2, sampler=OwnSampler(code=code.sha256, name="Coarse"))
    assert request.model_validate_json(request.model_dump_json()) == request
    assert decode(code.encoded).side == 3


def test_suggestions_are_made_where_the_code_is_opened() -> None:
    """A process that does not open user code refuses the request."""
    request, (code,) = requested(ASHA(sampler=Coarse()))
    sampling = suggestions_request(request.sampler, request.space, (), range(3), 7)
    found = values_for(sampling, lambda sha256: {code.sha256: decode(code.encoded)}[sha256])
    assert [list(each) for each in found] == [list(SPACE)] * 3
    assert {each["lr"] for each in found} <= {1e-4, 1e-1}
    assert {each["batch_size"] for each in found} == {32}
    with pytest.raises(SearchError, match="Coarse is user code, which only workers run"):
        values_for(sampling)


@pytest.mark.parametrize(
    ("sampler", "sentence"),
    [
        ("tpe", r"ASHA\(sampler='tpe'\)"),
        (Coarse, r"ASHA\(sampler=.*expected an object, Coarse\(\)"),
        (Few(), r"Few\.suggest cannot be called .*expected suggest\(self, space, history, numbers, seed\)"),
    ],
)
def test_an_object_that_is_no_sampler_is_refused(sampler: Any, sentence: str) -> None:
    """Before anything is sent."""
    with pytest.raises(SearchError, match=sentence):
        requested(ASHA(sampler=sampler))


def test_a_population_has_no_sampler() -> None:
    """Its first models are random."""
    request, stored = requested(PBT(population=20))
    assert (request.sampler, stored) == (RandomSampler(), [])


def test_a_good_sampler_passes_the_suite() -> None:
    """The suite that packages use."""
    check_sampler(Coarse, SPACE)


class Strict(Coarse):
    """Refuses a history that no search has, and a long one without each kind of model."""

    def suggest(self, space: Any, history: Sequence[Past], numbers: Any, seed: int) -> list[Any]:
        kinds = set()
        for past in history:
            assert list(past.scores) == list(range(1, len(past.scores) + 1))
            is_finished = len(past.scores) == 3
            assert is_finished + past.is_failed + past.is_running == 1
            kinds.add("finished" if is_finished else "failed" if past.is_failed else "running")
        assert len(history) < 24 or kinds == {"finished", "failed", "running"}
        return super().suggest(space, history, numbers, seed)


def test_the_suite_has_histories_of_searches() -> None:
    """A finished model has the scores of all epochs; a failed one gets no more scores."""
    check_sampler(Strict, SPACE)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (Irregular, "other suggestions for the same request"),
        (Short, "3 suggestions for 4 numbers"),
        (Outside, r"layers=5, which is not a value of RandInt.*low=1, high=4"),
        (Forgetful, "returned values of lr: expected values of lr, layers, act"),
        (Few, "cannot be called"),
    ],
)
def test_the_suite_finds_mistakes(make: type[Coarse], problem: str) -> None:
    """The error has the suggestion."""
    with pytest.raises(SearchError, match=problem):
        check_sampler(make, SPACE)


def test_the_suite_has_conditions() -> None:
    """A sampler may leave out what does not apply, but no more, and must expect such models."""
    check_sampler(Frugal, SPACE)
    with pytest.raises(KeyError, match="act") as caught:
        check_sampler(Complete, SPACE)
    assert caught.value.__notes__ == [
        "In this search space, models have 'act' only if 'layers' is one of [1, 2]."
    ]
    with pytest.raises(SearchError, match="without act: add its value, because its conditions"):
        check_sampler(Negligent, SPACE)


class Multiplying:
    """Computes the third value of a range by floating point, 0.30000000000000004, and keeps its history."""

    def __init__(self) -> None:
        self.history: list[Hyperparameters] = []

    def suggest(
        self, space: Mapping[str, Any], history: Sequence[Past], numbers: Sequence[int], seed: int
    ) -> list[Any]:
        self.history = [past.hyperparams for past in history]
        return [{"drop": 0.1 * 3, "mask": "rows"} for _ in numbers]


def test_a_value_of_a_range_with_steps_is_exact() -> None:
    """Conditions hold and training code gets 0.3, whoever computed the value with a rounding error."""
    space = {
        "drop": uniform(0, 0.5, step=0.1),
        "mask": choice("rows", "columns").when(drop=0.3),
        "batch_size": 32,
    }
    request = search_request(space, search=ASHA(sampler=Multiplying()), samples=20, epochs=9)
    assert request is not None
    own = Multiplying()
    added: Hyperparameters = {"drop": 0.1 * 3, "mask": "columns", "batch_size": 32}
    past = Past(hyperparams=added, scores={1: 0.5})
    (found,) = suggest(request.sampler, request.space, [past], [1], 7, own=own)
    assert found == {"drop": 0.3, "mask": "rows", "batch_size": 32}
    assert own.history == [{"drop": 0.3, "mask": "columns", "batch_size": 32}]
    plain = {name: each.model_copy(update={"when": {}}) for name, each in request.space.items()}
    suggest(request.sampler, plain, [past], [1], 7, own=own)
    assert own.history[0]["drop"] == 0.3


def test_suggestions_without_effect_are_left_out() -> None:
    """A sampler that knows nothing of conditions works; a condition on a fixed value always or never holds."""
    space = {
        "net": "deep",
        "layers": randint(1, 4),
        "act": choice(["relu", "tanh"]).when(layers=[1, 2], net="deep"),
        "slope": choice(0.1).when(act="relu"),
        "decay": uniform(0, 1).when(slope=0.1),
        "batch_size": 32,
    }
    request = search_request(space, search=ASHA(sampler=Coarse()), samples=20, epochs=9)
    assert request is not None
    found = suggest(request.sampler, request.space, (), range(40), 7, own=Coarse())
    assert all(("act" in each) == (each["layers"] == 1) for each in found)
    assert all(("decay" in each) == ("slope" in each) == (each.get("act") == "relu") for each in found)
    assert {tuple(each) for each in found} == {
        ("net", "layers", "batch_size"),
        ("net", "layers", "act", "batch_size"),
        ("net", "layers", "act", "slope", "decay", "batch_size"),
    }


def test_the_suite_begins_without_models() -> None:
    """As each search does."""
    with pytest.raises(ValueError, match="empty"):
        check_sampler(Trusting, SPACE)


def test_a_space_with_one_configuration_needs_no_sampler() -> None:
    """Nothing is left to choose."""
    space: Space = {"batch_size": choice([32])}  # type: ignore[dict-item]
    request = search_request(space, search=ASHA(sampler=Coarse()), samples=3, epochs=9)
    assert request is not None
    (found,) = suggest(request.sampler, request.space, (), [0], 7)
    assert found == {"batch_size": 32}
