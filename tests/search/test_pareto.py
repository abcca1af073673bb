"""Non-dominated ranks, their order, and selection from a front."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.runs import Constraint, FitRequest
from cerebro.search.pareto import (
    NO_CRITERIA,
    Criteria,
    Point,
    dominates,
    fronts,
    hypervolume,
    hypervolume_gain,
    order,
    ranks,
    spread_order,
)
from cerebro.search.procedures.rungs import ParetoRung

# Few different values, so that there are equal points, ties in one objective, and unknown values.
VALUES = st.sampled_from([0.0, 1.0, 2.0, 3.0, math.inf])


@st.composite
def losses(draw: st.DrawFn) -> list[tuple[float, ...]]:
    """Points of one to four objectives."""
    size = draw(st.integers(1, 4))
    return draw(st.lists(st.tuples(*[VALUES] * size), max_size=25))


@st.composite
def points(draw: st.DrawFn) -> list[Point]:
    return [Point(each, (draw(st.sampled_from([-1.0, 0.0, 0.5])),)) for each in draw(losses())]


def peeled(given_losses: list[tuple[float, ...]]) -> list[int]:
    """Return each point's front by definition: remove the points that no remaining point dominates, and repeat."""
    found = [0] * len(given_losses)
    left, front = set(range(len(given_losses))), 0
    while left:
        front += 1
        best = {a for a in left if not any(dominates(given_losses[b], given_losses[a]) for b in left)}
        for each in best:
            found[each] = front
        left -= best
    return found


@given(given_losses=losses())
@settings(max_examples=400, deadline=None)
def test_fronts_are_equal_to_repeated_removal(given_losses: list[tuple[float, ...]]) -> None:
    """The efficient sort and the definition agree."""
    assert fronts(given_losses) == peeled(given_losses)


@given(given_points=points())
@settings(max_examples=200, deadline=None)
def test_feasible_points_rank_first(given_points: list[Point]) -> None:
    """Ranks have no gaps, every order is sorted by rank, and the first one of a front has the best first objective."""
    by_rank = ranks(given_points)
    assert set(by_rank) == set(range(1, max(by_rank, default=0) + 1))
    feasible = [rank for rank, point in zip(by_rank, given_points, strict=True) if point.is_feasible]
    others = [rank for rank, point in zip(by_rank, given_points, strict=True) if not point.is_feasible]
    assert max(feasible, default=0) < min(others, default=math.inf)
    for found in (order(given_points), spread_order(given_points)):
        assert sorted(found) == list(range(len(given_points)))
        assert all(by_rank[a] <= by_rank[b] for a, b in pairwise(found))
        if found:
            front = [given_points[each].losses for each in found if by_rank[each] == 1]
            assert front[0] == min(front)


@given(given_points=points(), data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_rung_ranks_by_its_newest_points(given_points: list[Point], data: st.DataObject) -> None:
    """A replaced point has no effect, whatever the order of the reports."""
    numbers = data.draw(st.permutations(range(len(given_points))))
    rung = ParetoRung(1)
    for number in numbers:
        rung.put(number, Point((9.0,) * len(given_points[number].losses)))
        rung.put(number, given_points[number])
    expected = spread_order(given_points)
    assert rung.best(len(rung)) == expected
    assert [rung.rank(number) for number in expected] == list(range(len(expected)))


def test_the_first_points_cover_a_front() -> None:
    """Half of a crowded front contains both ends and the middle."""
    front = [Point((float(x), 100.0 - x)) for x in (0, 1, 2, 3, 50, 98, 99, 100)]
    assert set(spread_order(front)[:3]) == {0, 4, 7}


@pytest.mark.parametrize(
    ("operator", "value", "is_met"),
    [("<=", 2, True), ("<", 2, False), ("<", 1.9, True), (">=", 2, True), (">", 2, False), (">", 2.1, True)],
)
def test_strict_constraints_are_violated_at_their_limit(operator: str, value: float, is_met: bool) -> None:
    """A missing value, NaN and infinity violate each constraint."""
    constraint = Constraint.model_validate({"name": "x", "operator": operator, "limit": 2})
    criteria = Criteria(objectives={"y": "min"}, constraints=(constraint,))
    assert constraint.is_met(value) is is_met
    assert criteria.point({"x": value, "y": 1.0}).is_feasible is is_met
    for values in ({}, {"x": math.nan}, {"x": math.inf if operator == ">" else -math.inf}):
        assert not criteria.point(values).is_feasible


def test_objectives_to_maximize_have_negative_losses() -> None:
    """One metric without constraints needs no points."""
    request = FitRequest(code="0" * 64, models=({},), epochs=1, metric="accuracy", mode="max")
    assert Criteria.of(request) is NO_CRITERIA
    both = request.model_copy(update={"objectives": {"accuracy": "max", "train_s": "min"}})
    assert Criteria.of(both).point({"accuracy": 0.5, "train_s": 3.0}) == Point((-0.5, 3.0))
    assert Criteria.of(both).point({"accuracy": math.nan}).losses == (math.inf, math.inf)


def test_hypervolume_is_the_dominated_area() -> None:
    """Dominated points and points beyond the reference add nothing."""
    front = [(0.0, 2.0), (1.0, 1.0)]
    assert hypervolume(front, (3.0, 3.0)) == hypervolume([*front, (1.0, 2.0), (4.0, 0.0)], (3.0, 3.0)) == 5.0


@st.composite
def grid_points(draw: st.DrawFn) -> list[tuple[float, ...]]:
    """Points of two to four objectives with whole numbers from 0 to 4."""
    size = draw(st.integers(2, 4))
    whole = st.integers(0, 4).map(float)
    return draw(st.lists(st.tuples(*[whole] * size), min_size=1, max_size=8))


@given(given_points=grid_points())
@settings(max_examples=300, deadline=None)
def test_the_hypervolume_equals_the_number_of_dominated_unit_cells(
    given_points: list[tuple[float, ...]],
) -> None:
    """In any number of dimensions, and in any order of the points."""
    size = len(given_points[0])
    cells = sum(
        any(all(a <= b for a, b in zip(point, cell, strict=True)) for point in given_points)
        for cell in product(range(4), repeat=size)
    )
    assert hypervolume(given_points, (4.0,) * size) == cells
    assert hypervolume(given_points[::-1], (4.0,) * size) == cells


@given(given_points=grid_points())
@settings(max_examples=200, deadline=None)
def test_the_gains_of_points_add_up_to_the_hypervolume(given_points: list[tuple[float, ...]]) -> None:
    """A point never makes the hypervolume smaller, and a dominated one adds nothing."""
    reference, volume = (4.0,) * len(given_points[0]), 0.0
    for number, point in enumerate(given_points):
        gain = hypervolume_gain(point, given_points[:number], reference)
        is_dominated = any(dominates(each, point) or each == point for each in given_points[:number])
        assert gain >= 0
        assert not (is_dominated and gain)
        volume += gain
    assert volume == hypervolume(given_points, reference)
