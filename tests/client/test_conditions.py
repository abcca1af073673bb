"""Search spaces with conditions, steps and logarithmic integers: configurations, grids and their errors."""

from __future__ import annotations

import enum
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cerebro import ASHA, PBT, choice, loguniform, randint, uniform
from cerebro.client.requests.run_requests import FitOptions, fit_request
from cerebro.client.search import configurations
from cerebro.client.search.grid import grid_size
from cerebro.client.search.requests import search_request
from cerebro.client.search.space import space_data
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import FitRequest, Goal
from cerebro.contract.search import FixedProcedure, RandInt, SearchRequest, Space, Uniform
from cerebro.errors import SearchSpaceError
from cerebro.search.grids import num_values, value_at

SPACE: dict[str, Any] = {
    "encoder": choice("resnet18", "vit", "deit"),
    "patch": choice(4, 8).when(encoder=["vit", "deit"]),
    "window": randint(2, 6, step=2).when(encoder="vit", patch=4),
    "depth": randint(2, 12, step=2),
    "width": randint(32, 1024, log=True),
    "lr": loguniform(1e-5, 1e-1),
    "dropout": uniform(0.0, 0.5, step=0.1),
    "batch_size": 64,
}


class Activation(enum.Enum):
    RELU = "relu"
    GELU = "gelu"


def meets(config: Hyperparameters, space: Space) -> bool:
    """Restate the rule: a config has a hyperparameter if and only if it meets all conditions."""
    for name, distribution in space.items():
        met = all(
            parent in config and any(value == config[parent] for value in values)
            for parent, values in distribution.when.items()
        )
        if met != (name in config):
            return False
    return config.keys() <= space.keys()


@st.composite
def finite_spaces(draw: st.DrawFn) -> dict[str, Any]:
    """Draw spaces with small grids, whose conditions name values of earlier hyperparameters."""
    space: dict[str, Any] = {}
    values: dict[str, list[Any]] = {}
    for name in "abcde"[: draw(st.integers(1, 5))]:
        kind = draw(st.sampled_from(("choice", "randint", "uniform")))
        if kind == "choice":
            values[name] = draw(
                st.lists(st.sampled_from(["x", "y", 1, None, [1]]), min_size=1, max_size=3, unique_by=repr)
            )
            distribution = choice(values[name])
        elif kind == "randint":
            step, count = draw(st.integers(1, 3)), draw(st.integers(1, 4))
            values[name] = [2 + step * position for position in range(count)]
            distribution = randint(2, values[name][-1], step=step)
        else:
            values[name] = [0.1, 0.2, 0.3]
            distribution = uniform(0.1, 0.3, step=0.1)
        for parent in space:
            if draw(st.booleans()):
                chosen = draw(st.lists(st.sampled_from(values[parent]), min_size=1, max_size=2))
                distribution = distribution.when(**{parent: chosen})
        space[name] = distribution
    return {**space, "batch_size": 8}


def refusal(space: dict[str, Any]) -> str:
    """Return why a space is refused, or an empty text."""
    try:
        space_data(space)
    except SearchSpaceError as error:
        return str(error)
    return ""


def refusal_of_grid(space: dict[str, Any]) -> str:
    """Return why a grid is refused."""
    with pytest.raises(SearchSpaceError) as caught:
        configurations(space)
    return str(caught.value)


def brute_force(space: Space) -> list[Hyperparameters]:
    """Return the distinct configurations of the full product without the values that don't apply."""
    axes = [
        [value_at(each, position) for position in range(num_values(each) or 0)] for each in space.values()
    ]
    found: dict[str, Hyperparameters] = {}
    for values in itertools.product(*axes):
        config: Hyperparameters = {}
        for (name, distribution), value in zip(space.items(), values, strict=True):
            if all(
                parent in config and config[parent] in allowed
                for parent, allowed in distribution.when.items()
            ):
                config[name] = value
        found.setdefault(json.dumps(config), config)
    return list(found.values())


@given(finite_spaces())
@settings(max_examples=200)
def test_a_grid_is_the_brute_force_without_duplicates(space: dict[str, Any]) -> None:
    """In the order of nested loops; its size is known without listing it."""
    assume(not refusal(space))
    data = space_data(space)
    expected = brute_force(data)
    assert configurations(space) == expected
    assert grid_size(data) == len(expected)
    assert all(meets(config, data) for config in expected)
    assert {name for config in expected for name in config} == set(data)


@given(finite_spaces(), st.integers(0, 10**6))
@settings(max_examples=100)
def test_an_empty_branch_is_refused_and_no_other(space: dict[str, Any], seed: int) -> None:
    """A space is refused exactly if a hyperparameter is in no configuration; draws are in the grid."""
    unchecked: Space = {
        name: each.data if hasattr(each, "data") else choice(each).data for name, each in space.items()
    }
    everywhere = {name for config in brute_force(unchecked) for name in config}
    if everywhere != set(space):
        assert "empty branch" in refusal(space)
        return
    data = space_data(space)
    grid = configurations(space)
    assert all(
        config in grid and meets(config, data) for config in configurations(space, samples=5, seed=seed)
    )


def test_draws_satisfy_conditions_and_steps() -> None:
    """Each drawn value is on its step, and all branches occur."""
    data = space_data(SPACE)
    found = configurations(SPACE, samples=500, seed=1)
    assert all(meets(config, data) for config in found)
    assert {config["depth"] for config in found} == {2, 4, 6, 8, 10, 12}
    assert {config["dropout"] for config in found} == {0.0, 0.1, 0.2, 0.3, 0.4, 0.5}
    assert {config.get("window") for config in found} == {None, 2, 4, 6}
    assert {config.get("patch") for config in found} == {None, 4, 8}


def test_the_logarithm_of_an_integer_is_uniform() -> None:
    """The share of draws below 16 is its share of the logarithmic range; all are integers."""
    found = [
        config["w"]
        for config in configurations({"w": randint(1, 256, log=True), "batch_size": 1}, samples=4000)
    ]
    assert all(type(value) is int and 1 <= value <= 256 for value in found)
    share = sum(value < 16 for value in found) / len(found)  # type: ignore[operator]
    expected = math.log(15.5 / 0.5) / math.log(256.5 / 0.5)
    assert abs(share - expected) < 0.03


def test_a_condition_leaves_the_other_draws_as_they_are() -> None:
    """A hyperparameter has its own generator, also if it does not apply."""
    free = {**SPACE, "patch": choice(4, 8)}
    names = ("encoder", "depth", "width", "lr", "dropout")
    conditional, unconditional = (
        configurations(each, samples=20, seed=3) for each in (SPACE, {**free, "window": 2})
    )
    for one, other in zip(conditional, unconditional, strict=True):
        assert [one[name] for name in names] == [other[name] for name in names]
        assert one.get("patch", other["patch"]) == other["patch"]


@pytest.mark.parametrize(
    ("space", "match"),
    [
        (
            {"a": choice(1).when(b=2)},
            r"when\(b=...\) of 'a' refers to 'b', which the search space lacks: there is no earlier",
        ),
        (
            {"encoder": ["vit"], "a": choice(1).when(encode="vit")},
            "refers to 'encode'.*did you mean 'encoder'",
        ),
        ({"a": choice(1).when(b=2), "b": [1, 2]}, "a later hyperparameter: move 'b' before 'a'"),
        ({"a": choice(1, 2).when(a=2)}, "refers to 'a' itself"),
        (
            {"e": ["vit", "cnn"], "a": choice(1).when(e="vti")},
            r"empty branch.*when\(e='vti'\).*did you mean 'vit'",
        ),
        ({"e": ["vit", "cnn"], "a": choice(1).when(e=7)}, "never met: 'e' has the values 'vit', 'cnn'"),
        ({"e": [True], "a": choice(1).when(e=1)}, "empty branch"),
        ({"n": randint(1, 9, step=2), "a": choice(1).when(n=2)}, "'n' is between 1 and 9 in steps of 2"),
        ({"n": randint(1, 9), "a": choice(1).when(n=10)}, "'n' is between 1 and 9$"),
        ({"n": uniform(0, 1), "a": choice(1).when(n=0.5)}, "'n' is a range of floats: give it a step"),
        ({"n": loguniform(1, 2), "a": choice(1).when(n=1)}, "'n' is a range of floats"),
        (
            {"n": [1, 2], "a": choice(1).when(n=2), "b": choice(3).when(n=1, a=1)},
            r"when\(n=1, a=1\) are never met together, because 'a' has when\(n=2\)",
        ),
        ({"n": [1, 2], "batch_size": choice(8).when(n=2)}, "batch_size has a condition"),
    ],
)
def test_a_wrong_condition_is_one_clear_error(space: dict[str, Any], match: str) -> None:
    """For lists, samples and searches alike, before anything runs."""
    space = space if "batch_size" in space else {**space, "batch_size": 8}
    with pytest.raises(SearchSpaceError, match=match):
        configurations(space, samples=3)
    with pytest.raises(SearchSpaceError, match=match):
        search_request(space, search=ASHA(), samples=30, epochs=9)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: randint(2, 12, step=3),
            r"randint\(2, 12, step=3\): the step does not divide .* to 11 or 14",
        ),
        (lambda: uniform(0, 1, step=0.3), r"the step does not divide .* to 0.9 or 1.2"),
        (lambda: randint(1, 5, step=0), "the step must be a finite number above 0"),
        (lambda: randint(1, 5, step=-1), "the step must be a finite number above 0"),
        (lambda: randint(0, 10, step=10**400), r"step=10{150,}\.\.\.\): the step must be a finite number"),
        (lambda: uniform(0, 10, step=10**5000), r"step=\.\.\.\): the step must be a finite number"),
        (lambda: randint(0, 10**5000), r"randint\(0, \.\.\.\): both ends must be finite numbers"),
        (lambda: randint(1, 4, step=1.5), "the step must be a whole number"),
        (lambda: randint(1, 5, step="2"), "the step must be a finite number above 0"),  # type: ignore[arg-type]
        (lambda: uniform(0, 1e300, step=1e-5), "too small"),
        (lambda: randint(0, 8, log=True), "the lower end must be at least 1"),
        (lambda: randint(1, 9, step=2, log=True), "leave out `step` or `log`"),
        (lambda: choice().when(a=1), r"choice\(\[\]\) has no values"),
        (lambda: choice(1).when(), r"when\(\) has no condition"),
        (lambda: choice(1).when(a=[]), r"when\(a=\[\]\) has no value"),
        (lambda: choice(1).when(a={1}), r"in when\(a=...\) .*sorted"),
        (lambda: choice(1).when(a=1).when(a=2), r"when\(a=...\) is given twice"),
    ],
)
def test_steps_and_conditions_check_their_arguments(make: Any, match: str) -> None:
    """At construction."""
    with pytest.raises(SearchSpaceError, match=match):
        make()


@pytest.mark.parametrize(
    ("space", "size"),
    [
        ({"a": randint(1, 10**6), "b": randint(1, 10**6).when(a=3)}, "1,999,999"),
        ({"a": randint(1, 10**15), "b": choice("x", "y").when(a=[1, 2])}, "1,000,000,000,000,002"),
        (
            {f"p{n}": choice(1, 2) for n in range(40)}
            | {f"c{n}": choice(1, 2).when(**{f"p{n}": 1}) for n in range(40)},
            "up to 1,208,925,819,614,629,174,706,176",
        ),
    ],
)
def test_a_grid_that_is_too_large_is_refused_with_its_size(space: dict[str, Any], size: str) -> None:
    """It is counted, not listed; where conditions make counting long, the size without them is named."""
    with pytest.raises(SearchSpaceError, match=f"has {size} configurations, at most 100,000"):
        configurations({**space, "batch_size": 1})


def test_a_range_of_floats_has_no_grid() -> None:
    """The message names it."""
    with pytest.raises(SearchSpaceError, match=r"needs samples=N.*'lr' is one"):
        configurations({"a": choice(1, 2), "lr": loguniform(1e-3, 1e-1), "batch_size": 1})


def test_values_of_numpy_ranges_and_enums_are_accepted() -> None:
    """As lists, choices, constants, ends and conditions; training code receives plain values."""
    space = {
        "activation": Activation,
        "other": choice(Activation),
        "first": Activation.RELU,
        "layers": np.arange(1, 3),
        "size": np.int64(3),
        "rate": randint(np.int64(1), np.int32(3), step=np.int64(2)).when(activation=Activation.GELU),
        "batch_size": range(8, 10),
    }
    found = configurations(space)
    assert len(found) == 8 + 8 * 2
    assert (
        {config["activation"] for config in found}
        == {config["other"] for config in found}
        == {"relu", "gelu"}
    )
    assert {json.dumps(config["layers"]) for config in found} == {"1", "2"}
    assert all(config["first"] == "relu" and config["size"] == 3 for config in found)
    assert all(("rate" in config) == (config["activation"] == "gelu") for config in found)
    assert {config.get("rate") for config in found} == {None, 1, 3}


def test_a_single_text_is_one_value() -> None:
    """Not its letters."""
    assert configurations({"a": choice("vit"), "batch_size": 1}) == [{"a": "vit", "batch_size": 1}]
    assert configurations({"a": choice([1, 2], [3]), "batch_size": 1})[1] == {"a": [3], "batch_size": 1}


def test_a_request_with_conditions_is_stored_and_read() -> None:
    """Spaces without the new fields are stored as before."""
    request = search_request(SPACE, search=PBT(), epochs=9)
    assert request is not None
    assert SearchRequest.model_validate_json(request.model_dump_json()) == request
    assert RandInt(low=1, high=2).model_dump() == {"kind": "randint", "low": 1, "high": 2}
    assert Uniform(low=1, high=2).model_dump() == {"kind": "uniform", "low": 1.0, "high": 2.0}


def test_a_fit_of_listed_models_stores_a_space_with_conditions() -> None:
    """Clones follow them. A search has its own space, and requests without conditions are as before."""
    space = {"net": choice("cnn", "vit"), "patch": choice(4, 8).when(net="vit"), "batch_size": 1}
    plain = {"lr": [0.1], "batch_size": 1}
    options = FitOptions(metric="loss", mode="min")

    def stored(space: Any, search: SearchRequest | None = None) -> FitRequest:
        request = fit_request(
            "0" * 64, search, configurations(space), options, space=space, technique_fields={}, goal=Goal()
        )
        assert FitRequest.model_validate_json(request.model_dump_json()) == request
        return request

    assert stored(space).space == space_data(space)
    assert stored(space, SearchRequest(procedure=FixedProcedure())).space == space_data(space)
    assert stored(space, search_request(space, search=ASHA(), samples=9, epochs=9)).space == {}
    for without in (plain, [{"lr": 0.1, "batch_size": 1}], {"lr": choice(0.1), "batch_size": 1}):
        assert "space" not in stored(without).model_dump()


def test_a_condition_may_name_any_hyperparameter() -> None:
    """Also one that has the name of a Python argument."""
    space = {"self": choice(1, 2), "a": choice("x").when(self=2), "batch_size": 1}
    assert [config.get("a") for config in configurations(space)] == [None, "x"]


def test_a_large_grid_is_refused_without_counting_all_of_it() -> None:
    """Although conditions name all values, so that each combination is counted by itself."""
    names = {name: randint(1, 9_999) for name in "abc"}
    everything = dict.fromkeys(names, range(1, 10_000))
    space = {**names, "d": choice(1, 2).when(**everything), "batch_size": 1}
    assert grid_size(space_data(space)) is None
    assert "the grid (a 9,999 x b 9,999 x c 9,999 x d 2) has up to 1,999,400,059,998" in refusal_of_grid(
        space
    )


def test_a_repeated_value_counts_as_often_as_it_occurs() -> None:
    """In a choice as in a list; a condition names it once. true and 1 are different values."""
    repeated = [1, [1], {"p": 1}, 1.0, True, [1]]
    space = {"a": choice(repeated), "b": choice("x", "y").when(a=[1, [1], {"p": 1}]), "batch_size": 8}
    data = space_data(space)
    found = configurations(space)
    assert grid_size(data) == len(found) == 11
    assert [config["a"] for config in found if "b" not in config] == [True]
