"""A variant of a search space with a condition, for the contract suites of procedures and samplers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cerebro.contract.search import Space
from cerebro.search.grids import num_values, value_at
from cerebro.search.samplers.dimensions import varying

_MAX_VALUES = 20


def spaces_of(space: Space) -> list[Space]:
    """Return a space and, if it has no condition, a variant with one.

    A hyperparameter of the variant exists only for some values of another, which needs finitely many values.
    """
    if any(each.when for each in space.values()):
        return [space]
    dimensions = varying(space)
    parent = next((name for name, each in dimensions.items() if num_values(each) is not None), None)
    child = next((name for name in reversed(dimensions) if name not in (parent, "batch_size")), None)
    if parent is None or child is None:
        return [space]
    count = num_values(space[parent]) or 0
    values = tuple(value_at(space[parent], place) for place in range(min(count // 2, _MAX_VALUES)))
    conditional = space[child].model_copy(update={"when": {parent: values}})
    return [space, {parent: space[parent], **space, child: conditional}]


@contextmanager
def note_conditions(space: Space) -> Iterator[None]:
    """Add the conditions of the space to errors."""
    try:
        yield
    except Exception as error:
        for name, each in space.items():
            for parent, values in each.when.items():
                error.add_note(
                    f"In this search space, models have {name!r} only if {parent!r} is one of {list(values)}."
                )
        raise
