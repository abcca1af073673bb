"""Checks of conditions, and grids of spaces with conditions: their size and configurations. Pure functions."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping

from pydantic import JsonValue

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import (
    MAX_CONFIGURATIONS,
    ChoiceOf,
    Distribution,
    LogUniform,
    RandInt,
    Space,
    Uniform,
    is_among,
)
from cerebro.errors import SearchSpaceError
from cerebro.search.grids import nearest, num_values, value_at

_MAX_STEPS = 30_000
"""Steps of counting a grid, about half a second."""


def check_conditions(space: Space) -> None:
    """Check that each condition names an earlier hyperparameter and values that it can have.

    Raises:
        SearchSpaceError: a condition is wrong, or the conditions of a hyperparameter are never met together.
    """
    earlier: Space = {}
    for name, distribution in space.items():
        for parent, values in distribution.when.items():
            if parent not in earlier:
                raise SearchSpaceError(_not_earlier(name, parent, space, earlier))
            for value in values:
                if not _has_value(earlier[parent], value):
                    raise SearchSpaceError(_empty_branch(name, parent, value, earlier[parent]))
        if distribution.when:
            _check_branch(name, distribution, earlier)
        earlier[name] = distribution
    if "batch_size" in space and space["batch_size"].when:
        raise SearchSpaceError(
            "batch_size has a condition, but each model needs a batch size: remove when() from it"
        )


def _not_earlier(name: str, parent: str, space: Space, earlier: Space) -> str:
    subject = f"the condition when({parent}=...) of {name!r}"
    if parent == name:
        return f"{subject} refers to {name!r} itself: name an earlier hyperparameter"
    if parent in space:
        return f"{subject} refers to a later hyperparameter: move {parent!r} before {name!r}"
    similar = difflib.get_close_matches(parent, list(earlier), n=1, cutoff=0.5)
    names = ", ".join(earlier) or "no earlier hyperparameter"
    advice = f"did you mean {similar[0]!r}?" if similar else f"there is {names}"
    return f"{subject} refers to {parent!r}, which the search space lacks: {advice}"


def _has_value(distribution: Distribution, value: JsonValue) -> bool:
    """Return True if a distribution can have a value; never for a range of floats without a step."""
    match distribution:
        case ChoiceOf(values=values):
            return is_among(value, values)
        case LogUniform() | Uniform(step=None):
            return False
        case _:
            if isinstance(value, bool) or not isinstance(value, int | float):
                return False
            return nearest(distribution, value) == value


def _empty_branch(name: str, parent: str, value: JsonValue, distribution: Distribution) -> str:
    subject = f"{name!r} has an empty branch: its condition when({parent}={value!r}) is never met"
    match distribution:
        case LogUniform() | Uniform(step=None):
            return f"{subject}, because {parent!r} is a range of floats: give it a step, or use integers or a choice"
        case ChoiceOf(values=values):
            texts = {each: each for each in values if isinstance(each, str)}
            similar = difflib.get_close_matches(str(value), texts, n=1, cutoff=0.6)
            shown = ", ".join(map(repr, values[:10])) + (", ..." if len(values) > 10 else "")
            advice = f"did you mean {similar[0]!r}?" if similar else f"{parent!r} has the values {shown}"
            return f"{subject}: {advice}"
        case RandInt(low=low, high=high) | Uniform(low=low, high=high):
            step = f" in steps of {distribution.step}" if distribution.step != 1 else ""
            return f"{subject}: {parent!r} is between {low} and {high}{step}"


def _check_branch(name: str, distribution: Distribution, earlier: Space) -> None:
    """Check that all conditions can be met together, also those of the named hyperparameters themselves."""
    required = dict(distribution.when)
    for parent in reversed(earlier):
        if parent not in required:
            continue
        for each, allowed in earlier[parent].when.items():
            both = [value for value in required.get(each, allowed) if is_among(value, allowed)]
            if not both:
                raise SearchSpaceError(
                    f"{name!r} has an empty branch: its conditions {_conditions(distribution)} are never met together, "
                    f"because {parent!r} has {_conditions(earlier[parent])}: change or remove a condition"
                )
            required[each] = tuple(both)


def _conditions(distribution: Distribution) -> str:
    """Return the conditions as the user writes them."""
    shown = (
        f"{name}={values[0]!r}" if len(values) == 1 else f"{name}={list(values)!r}"
        for name, values in distribution.when.items()
    )
    return f"when({', '.join(shown)})"


# --- grids ---------------------------------------------------------------------------------------


def grid_size(space: Space) -> int | None:
    """Return the number of configurations; `None` if it is above the limit and counting takes long.

    Does not list the configurations: it counts them by the values that later conditions name.
    """
    counts: dict[str, tuple[Hyperparameters, int]] = {"": ({}, 1)}
    steps = 0
    last_use = {parent: name for name, each in space.items() for parent in each.when}
    for name, distribution in space.items():
        total = num_values(distribution)
        assert total is not None, "the caller has checked it"
        named = {_key(value): value for later in space.values() for value in later.when.get(name, ())}
        times = Counter(map(_key, distribution.values) if isinstance(distribution, ChoiceOf) else list(named))
        # The branch without a value stands for all values that no condition names.
        branches: list[tuple[Hyperparameters, int]] = [
            *(({name: value}, times[key]) for key, value in named.items()),
            ({}, total - sum(times[key] for key in named)),
        ]
        following: dict[str, tuple[Hyperparameters, int]] = {}
        size = 0
        for values, count in counts.values():
            for branch, number in branches if distribution.applies(values) else [({}, 1)]:
                if not number:
                    continue
                state = {each: of for each, of in (values | branch).items() if last_use[each] != name}
                key = repr(state)
                following[key] = (state, following.get(key, (state, 0))[1] + count * number)
                size += count * number
                steps += 1
                if steps > _MAX_STEPS and size > MAX_CONFIGURATIONS:
                    return None
        counts = following
    return sum(count for _, count in counts.values())


def _key(value: JsonValue) -> Hashable:
    """Return a key that is the same for values which `is_among` calls equal."""
    return isinstance(value, bool), _hashable(value)


def _hashable(value: JsonValue) -> Hashable:
    match value:
        case list():
            return tuple(map(_hashable, value))
        case dict():
            return frozenset((name, _hashable(each)) for name, each in value.items())
        case _:
            return value


def grid(space: Space) -> list[Hyperparameters]:
    """Return all configurations, in the order of nested loops."""
    found: list[Hyperparameters] = [{}]
    for name, distribution in space.items():
        total = num_values(distribution)
        assert total is not None, "the caller has checked it"
        values = [value_at(distribution, position) for position in range(total)]
        found = [
            each
            for config in found
            for each in (
                ({**config, name: value} for value in values) if distribution.applies(config) else [config]
            )
        ]
    return found


def ranges_of_floats(space: Mapping[str, Distribution]) -> Iterator[str]:
    """Yield the hyperparameters that have no grid."""
    return (name for name, distribution in space.items() if num_values(distribution) is None)
