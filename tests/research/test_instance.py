"""Instances and answers as JSON: both input forms, and errors that name the mistake."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.errors import InstanceError
from cerebro.scheduling.schedule import Placement, Schedule
from research.instance import answer, parse
from research.problems import multi_gpu, open_shop
from research.solve import Solution

RUNTIMES = {"a": {"0": {"1": 4, "2": 2.5}, "1": {"1": 3}}, "b": {"0": {"1": 1}, "1": {"1": 1}}}


def test_times_may_come_with_an_availability_map_and_epochs() -> None:
    """More partitions than workers, some with replicas."""
    found = parse('{"times": [[1, 2]], "available": [[0], [0, 1], [1]], "epochs": 3}')
    assert found.problem == open_shop([[1.0, 2.0]], [[0], [0, 1], [1]], epochs=3)


def test_nodes_and_runtimes_are_parsed_as_a_multi_gpu_problem() -> None:
    """JSON keys are text: the parser converts node and GPU numbers, and keeps model names as labels."""
    found = parse(json.dumps({"nodes": [2, 1], "runtimes": RUNTIMES}))
    assert found.problem == multi_gpu(
        [2, 1], {"a": {0: {1: 4.0, 2: 2.5}, 1: {1: 3.0}}, "b": {0: {1: 1.0}, 1: {1: 1.0}}}
    )
    assert found.labels == ("a", "b")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(("times", "available", "epochs", "nodes", "runtimes", "x")), JSON))
@settings(deadline=None, max_examples=200)
@pytest.mark.slow
def test_any_input_is_an_instance_or_an_instance_error(value: dict[str, Any]) -> None:
    """The parser raises only `InstanceError`, with a one-line message."""
    said = ""
    try:
        parse(json.dumps(value))
    except InstanceError as problem:
        said = str(problem)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ('{"times": [[1], [1]]}', 1),
        ('{"nodes": [1], "runtimes": {"a": {"0": {"1": 1}}, "b": {"0": {"1": 1}}}}', "b"),
    ],
)
def test_an_answer_contains_the_schedule(text: str, label: int | str) -> None:
    """Makespan, bound, proof, source and solve time, and the placement of each sub-epoch."""
    sub_epochs = [Placement(model=m, partition=0, worker=0, start=float(m), end=m + 1.0) for m in (0, 1)]
    solution = Solution(
        schedule=Schedule.of(sub_epochs), lower_bound=2.0, is_optimal=True, source="fifo", seconds=0.25
    )
    found = answer(parse(text), solution)
    assert list(found) == ["makespan", "lower_bound", "optimal", "policy", "seconds", "sub_epochs"]
    assert (found["makespan"], found["lower_bound"], found["optimal"]) == (2, 2, True)
    assert (found["policy"], found["seconds"]) == ("fifo", 0.25)
    assert found["sub_epochs"][1] == {
        "model": label,
        "node": 0,
        "gpus": 1,
        "start": 1.0,
        "end": 2.0,
        "partition": 0,
        "epoch": 1,
        "devices": [0],
    }
