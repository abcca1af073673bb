"""Search spaces: grids, random samples and their errors."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.client.search import choice, configurations, loguniform, randint, uniform
from cerebro.errors import SearchSpaceError

GRID: dict[str, Any] = {"lr": [0.1, 0.01], "batch_size": [16, 32, 64], "name": "net"}


@given(
    space=st.dictionaries(
        st.sampled_from("abcd"),
        st.lists(st.integers(-(2**53), 2**53), min_size=1, max_size=4, unique=True),
        max_size=4,
    )
)
def test_a_grid_has_the_product_of_its_lists(space: dict[str, list[int]]) -> None:
    """Each combination exists once."""
    found = configurations({**space, "batch_size": [1]})
    assert len(found) == math.prod(len(values) for values in space.values())
    assert len({tuple(sorted(configuration.items())) for configuration in found}) == len(found)


RANDOM: dict[str, Any] = {
    "a": uniform(0, 1),
    "b": uniform(0, 1),
    "c": loguniform(1e-5, 1e-1),
    "d": randint(1, 100),
    "e": choice(range(50)),
    "f": list(range(50)),
    "batch_size": 8,
}


def test_the_seed_determines_the_samples() -> None:
    """The same seed gives the same list, a larger sample extends it, another seed differs."""
    first = configurations(RANDOM, samples=20, seed=1)
    assert first == configurations(RANDOM, samples=20, seed=1)
    assert configurations(RANDOM, samples=30, seed=1)[:20] == first
    assert configurations(RANDOM, samples=20, seed=2) != first


def test_samples_stay_in_their_range() -> None:
    """Bounds included; the logarithm of a loguniform value is uniform."""
    found = configurations(RANDOM, samples=2000, seed=3)
    assert all(0 <= c["a"] <= 1 for c in found)  # type: ignore[operator]
    assert {c["d"] for c in found} == set(range(1, 101))
    assert {c["e"] for c in found} == {c["f"] for c in found} == set(range(50))
    logs = [math.log10(float(c["c"])) for c in found]  # type: ignore[arg-type]
    assert min(logs) >= -5
    assert max(logs) <= -1
    assert abs(float(np.mean(logs)) + 3) < 0.1


@pytest.mark.parametrize(
    ("space", "match"),
    [
        ({}, "empty"),
        ([], "empty"),
        ({"lr": [], "batch_size": [1]}, "'lr' has no values"),
        ({"batch_size": []}, "'batch_size' has no values"),
        ("text", "is a str"),
        (5, "is a int"),
        (None, "is a NoneType"),
        ([{"batch_size": 1}, 5], "configuration 1 of the search space is a int"),
        ({1: [2], "batch_size": [1]}, "must be text, not 1"),
        ({"": [2], "batch_size": [1]}, "must be text, not ''"),
        ({"lr": [0.1]}, "lacks 'batch_size'"),
        ([{"lr": 0.1}], "lacks 'batch_size'"),
        ({"batch_size": [0]}, "batch_size is 0"),
        ({"batch_size": ["8"]}, "batch_size is '8'"),
        ({"batch_size": [8.0]}, "batch_size is 8.0"),
        ({"batch_size": [True]}, "batch_size is True"),
        ({"batch_size": [1], "lr": [float("nan")]}, "'lr' has the value nan"),
        ({"batch_size": [1], "\udc80": [1]}, "names .*surrogate"),
        ({"batch_size": [1], "lr": [float("inf")]}, "'lr' has the value inf"),
        ({"batch_size": [1], "act": [math.sin]}, "'act' has the value"),
        ({"batch_size": [1], "lr": [1j]}, r"'lr' has the value 1j \(complex\)"),
        ({"batch_size": [1], "tag": ["ok", "\udc80"]}, r"'tag' has the value '\\udc80'.*surrogate"),
        ({"batch_size": [1], "net": {"\ud83d": [1]}}, "'net' has the value .*surrogate"),
        ({"batch_size": [1], "s": [{1, 2}]}, r"\(set\)"),
        ({"batch_size": [1], "s": {1, 2}}, r"\(set\)"),
        ({"batch_size": np.linspace(1, 4, 4)}, r"batch_size is 1.0"),
        ({"batch_size": [1], "lr": np.array([])}, "'lr' has no values"),
        ({"batch_size": [1], "lr": np.ma.array([1.0, 2.0], mask=[False, True])}, "'lr' has a masked element"),
    ],
)
def test_a_search_space_that_cannot_be_used_is_named(space: Any, match: str) -> None:
    """Empty, wrongly typed or missing values."""
    with pytest.raises(SearchSpaceError, match=match):
        configurations(space)


def test_samples_and_distributions_require_each_other() -> None:
    """The error for one without the other names the fix."""
    with pytest.raises(SearchSpaceError, match="samples=N"):
        configurations(RANDOM)
    for samples in (0, -1):
        with pytest.raises(SearchSpaceError, match="at least 1"):
            configurations(RANDOM, samples=samples)
    with pytest.raises(SearchSpaceError, match="leave `samples` out"):
        configurations(GRID, samples=3)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: uniform(1, 0), r"uniform\(1, 0\)"),
        (lambda: loguniform(0, 1), r"loguniform\(0, 1\).*positive"),
        (lambda: loguniform(-1, 1), "positive"),
        (lambda: randint(3, 2), r"randint\(3, 2\)"),
        (lambda: choice([]), r"choice\(\[\]\)"),
        (lambda: uniform(float("nan"), 1), "uniform"),
        *(
            (partial(of, *ends), r"\('1', .*: both ends must be finite numbers; leave out the quotes")
            for of in (uniform, loguniform, randint)
            for ends in (("1", "5"), ("1", 5))
        ),
        (lambda: loguniform("1e-4", "1e-1"), "finite numbers; leave out the quotes"),  # type: ignore[arg-type]
        (lambda: uniform(None, 1), r"uniform\(None, 1\): both ends must be finite numbers$"),  # type: ignore[arg-type]
    ],
)
def test_distributions_check_their_arguments(make: Any, match: str) -> None:
    """At construction, not at sampling."""
    with pytest.raises(SearchSpaceError, match=match):
        make()
