"""Hyperparameters reach user code unchanged, or the client refuses them by name."""

from __future__ import annotations

import decimal
import enum
import fractions
import json
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cerebro.client.search import choice, configurations, first_configuration, randint, uniform
from cerebro.client.search.requests import search_request
from cerebro.contract.runs import FitRequest
from cerebro.contract.search import ASHA, MAX_CONFIGURATIONS, PBT, ChoiceOf, Hyperband, Random
from cerebro.contract.values import MAX_VALUE_BYTES, carried
from cerebro.errors import SearchError, SearchSpaceError
from tests.state.stories import SHA

DRAWN: dict[str, Any] = {"lr": uniform(0, 1), "batch_size": [1]}


class Kind(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.linspace(0, 1, 3), [0.0, 0.5, 1.0]),
        (np.arange(3), [0, 1, 2]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.float32(0.1), 0.10000000149011612),
        (np.float16(0.1), 0.0999755859375),
        (np.float64(0.1), 0.1),
        (np.longdouble(0.5), 0.5),
        (np.int8(-3), -3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array(7), 7),
        (np.ma.array([1.0, 2.0], mask=[False, False]), [1.0, 2.0]),
        (torch.tensor([1.5, 2.5]), [1.5, 2.5]),
        (torch.tensor(0.1, dtype=torch.bfloat16), 0.10009765625),
        ((1, (2.5, "x")), [1, [2.5, "x"]]),
        (OrderedDict(a=(1,)), {"a": [1]}),
        (Kind.ONE, 1),
        (2**53, 2**53),
        (-0.0, -0.0),
        (5e-324, 5e-324),
        (None, None),
    ],
)
def test_values_with_an_equal_in_json_are_carried(value: Any, expected: object) -> None:
    """Arrays, scalars and tuples become plain numbers and lists with the same type in each form of a space."""
    found = carried(value)
    assert json.dumps(found) == json.dumps(expected)
    for space in ([{"x": value, "batch_size": 1}], {"x": [value], "batch_size": [1]}):
        assert json.dumps(configurations(space)[0]["x"]) == json.dumps(expected)
    assert choice([value]).data == ChoiceOf(values=(found,))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({1: 2}, "has the key 1, and JSON makes each key text"),
        ({"a": [{None: 1}]}, r"\['a'\]\[0\] has the key None"),
        ({True: 1, "True": 2}, "has the key True"),
        (2**53 + 1, "beyond 2\\*\\*53"),
        ([0, {"n": -(2**63)}], r"\[1\]\['n'\] is -9223372036854775808, beyond"),
        (np.uint64(2**63), "beyond 2\\*\\*53"),
        (np.ma.masked, "masked element"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), "masked element"),
        (decimal.Decimal("1.1"), "is a Decimal"),
        (fractions.Fraction(1, 3), "is a Fraction"),
        ({1, 2}, "is a set"),
        (frozenset(), "is a frozenset"),
        (1j, "is a complex"),
        (np.complex64(1), "dtype complex64"),
        (torch.tensor([1j]), "is a complex"),
        (torch.eye(2).to_sparse(), "is a Tensor without a list of its elements"),
        (torch.empty(2, device="meta"), "is a Tensor without a list of its elements"),
        (float("nan"), "is nan, which JSON cannot hold"),
        ([1.0, float("-inf")], r"\[1\] is -inf"),
        (np.array([1.0, np.nan]), r"\[1\] is nan"),
        (np.longdouble(1) / 3, "float64 cannot hold exactly"),
        (np.datetime64("2024-01-01", "ns"), r"dtype datetime64\[ns\]"),
        (np.timedelta64(1, "s"), "dtype timedelta64"),
        (b"x", "is a bytes"),
        ("\udc80", "surrogate"),
        ({"\udc80": 1}, "surrogate"),
        (range(3), "is a range"),
        (iter([1]), "is a list_iterator"),
        (object, "is a type"),
        ("x" * (2 << 20), "takes 2.0 MiB, at most 1 MiB"),
        ([0.5] * (MAX_VALUE_BYTES // 4), r"takes \d\.\d MiB, at most 1 MiB: list a file under `misc`"),
    ],
)
def test_values_that_json_would_change_are_refused_by_name(value: Any, reason: str) -> None:
    """A short message with the hyperparameter, the position in its value and the reason."""
    with pytest.raises(ValueError, match=reason):
        carried(value)
    with pytest.raises(SearchSpaceError, match=f"hyperparameter 'x' has the value .*{reason}") as refused:
        configurations([{"x": value, "batch_size": 1}])
    assert len(str(refused.value)) < 700


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(value=JSON)
def test_json_values_are_carried_unchanged(value: Any) -> None:
    """They also pass the contract."""
    found = carried(value)
    assert repr(found) == repr(value)
    request = FitRequest(code=SHA, models=({"x": value},), epochs=1, metric="m", mode="max")
    assert repr(FitRequest.model_validate_json(request.model_dump_json()).models[0]["x"]) == repr(value)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "[1, NaN]", '{"a": [NaN]}', "1e999"])
def test_a_direct_request_with_nan_is_refused(value: str) -> None:
    """In hyperparameters and in choices of a search. JSON would store NaN as text."""
    text = f'{{"code": "{SHA}", "models": [{{"x": {value}}}], "epochs": 1, "metric": "m", "mode": "max"}}'
    with pytest.raises(ValidationError, match="not a finite number"):
        FitRequest.model_validate_json(text)
    with pytest.raises(ValidationError, match="not a finite number"):
        ChoiceOf.model_validate_json(f'{{"values": [{value}]}}')


@pytest.mark.parametrize("field", ["hang_timeout_s", "verify", "goal.finish_by", "goal.worker_hours"])
@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_a_direct_request_has_finite_settings(field: str, value: str) -> None:
    outer, _, inner = field.partition(".")
    setting = f'{{"{inner}": {value}}}' if inner else value
    text = f'{{"code": "{SHA}", "models": [{{}}], "epochs": 1, "metric": "m", "mode": "max", "{outer}": {setting}}}'
    with pytest.raises(ValidationError, match=field):
        FitRequest.model_validate_json(text)


LARGE: dict[str, Any] = {
    "a product": {f"x{n}": list(range(100)) for n in range(5)},
    "two arrays": {"x": np.arange(400), "y": range(400)},
    "a range beyond all memory": {"x": range(10**30)},
    "a descending range": {"x": range(10**12, 0, -3)},
    "a long array": {"x": np.zeros(MAX_CONFIGURATIONS + 1)},
}
"""Spaces with too many configurations to list."""


def _search(space: Any) -> object:
    return search_request(space | {"z": choice([1])}, search=ASHA(), samples=9, epochs=9)


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        *((name, ask) for name in LARGE for ask in (configurations, first_configuration)),
        # A search only accepts lists of values, no products.
        *((name, _search) for name in LARGE if name not in ("a product", "two arrays")),
    ],
)
def test_spaces_too_large_to_list_are_refused_at_once(name: str, ask: Callable[[Any], object]) -> None:
    """The client computes the size without building configurations, so memory is bounded."""
    tracemalloc.start()
    try:
        with pytest.raises(SearchSpaceError, match=f"at most {MAX_CONFIGURATIONS:,}"):
            ask(LARGE[name] | {"batch_size": [32]})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "ask",
    [
        lambda: PBT(population=10**9),
        lambda: ASHA(active=10**9),
        lambda: Random(active=10**9),
        lambda: search_request(DRAWN, search=Hyperband(eta=2), epochs=10**9),
        lambda: search_request(DRAWN, search=Hyperband(), samples=10**9, epochs=27),
    ],
)
def test_searches_that_hold_too_many_models_are_refused(ask: Callable[[], object]) -> None:
    """A controller would create every model at once."""
    with pytest.raises(SearchError, match=r"(at most|more than) 100,000|less than or equal to 100000"):
        ask()


def test_random_integers_stay_in_the_exact_range_of_javascript() -> None:
    """JavaScript on the page is exact up to 2**53."""
    with pytest.raises(SearchSpaceError, match=r"beyond 2\*\*53"):
        randint(0, 2**60)


@pytest.mark.parametrize("levels", [60, 2000, 50_000])
def test_deep_values_are_refused_by_name(levels: int) -> None:
    """Python's recursion limit is not reached."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    with pytest.raises(SearchSpaceError, match=r"layers.*nested too deeply"):
        list(configurations({"layers": [value], "batch_size": [1]}))
