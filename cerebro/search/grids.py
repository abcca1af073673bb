"""Distributions with finitely many values, and the nearest value of any numeric one. Pure."""

from __future__ import annotations

from decimal import Decimal

from pydantic import JsonValue

from cerebro.contract.search import ChoiceOf, Distribution, LogUniform, RandInt, Uniform


def num_values(distribution: Distribution) -> int | None:
    """Return the number of values; `None` for any float of a range."""
    match distribution:
        case ChoiceOf(values=values):
            return len(values)
        case RandInt(low=low, high=high, step=step):
            return (high - low) // step + 1
        case Uniform(low=low, high=high, step=float(step)):
            return int((Decimal(repr(high)) - Decimal(repr(low))) // Decimal(repr(step))) + 1
        case _:
            return None


def value_at(distribution: Distribution, position: int) -> JsonValue:
    """Return a value of a distribution with finitely many, by its position from 0."""
    match distribution:
        case ChoiceOf(values=values):
            return values[position]
        case RandInt(low=low, step=step):
            return low + position * step
        case Uniform(low=low, step=float(step)):
            # In decimals, 0 + 3 * 0.1 is 0.3.
            return float(Decimal(repr(low)) + position * Decimal(repr(step)))
        case _:
            raise ValueError(f"{distribution!r} has any float of its range")


def nearest(distribution: Uniform | LogUniform | RandInt, value: float) -> float:
    """Return the value of the distribution that is nearest to a number; an integer for `RandInt`."""
    inside = min(max(value, distribution.low), distribution.high)
    step = None if isinstance(distribution, LogUniform) else distribution.step
    if step is None:
        return inside
    if step == 1 and isinstance(distribution, RandInt):
        return round(inside)
    count = num_values(distribution)
    assert count is not None
    found = value_at(distribution, min(round((inside - distribution.low) / step), count - 1))
    assert isinstance(found, int | float)
    return found
