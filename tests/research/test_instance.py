"""Instances and answers as JSON: both forms are read, and what is wrong with one is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.errors import InstanceError
from cerebro.scheduling.problem import multi_gpu, open_shop
from cerebro.scheduling.schedule import Schedule, SubEpoch
from research.instance import answer, parse
from research.solve import Solution

RUNTIMES = {"a": {"0": {"1": 4, "2": 2.5}, "1": {"1": 3}}, "b": {"0": {"1": 1}, "1": {"1": 1}}}


def test_times_are_an_open_shop() -> None:
    """Whole numbers and others; models are called by their row."""
    found = parse('{"times": [[1, 2.5], [3, 4e0]]}')
    assert found.problem == open_shop([[1.0, 2.5], [3.0, 4.0]])
    assert found.labels == (0, 1)


def test_times_may_come_with_an_availability_map_and_epochs() -> None:
    """More partitions than workers, held by one or several."""
    found = parse('{"times": [[1, 2]], "available": [[0], [0, 1], [1]], "epochs": 3}')
    assert found.problem == open_shop([[1.0, 2.0]], [[0], [0, 1], [1]], epochs=3)


def test_nodes_and_runtimes_are_the_multi_gpu_form() -> None:
    """Keys of JSON objects are text: nodes and numbers of GPUs are read from it; models are called by name."""
    found = parse(json.dumps({"nodes": [2, 1], "runtimes": RUNTIMES}))
    assert found.problem == multi_gpu(
        [2, 1], {"a": {0: {1: 4.0, 2: 2.5}, 1: {1: 3.0}}, "b": {0: {1: 1.0}, 1: {1: 1.0}}}
    )
    assert found.labels == ("a", "b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the instance is empty"),
        ("{", "the instance is no JSON"),
        ("[" * 100_000, "the instance is no JSON: it is nested too deeply"),
        ("9" * 5000, "the instance is no JSON: a number is too long"),
        ("[1]", "the instance is a list, expected an object"),
        ("null", "the instance is null, expected an object"),
        ("{}", "the instance has no 'nodes': give either times, or nodes and runtimes"),
        ('{"nodes": [1]}', "the instance has no 'runtimes'"),
        ('{"times": [[1]], "nodes": [1]}', "times as well as nodes or runtimes: give one"),
        ('{"times": [[1]], "epoch": 2}', "unknown key 'epoch', expected times, available, epochs"),
        ('{"nodes": [1], "runtimes": {}, "available": [[0]]}', "unknown key 'available'"),
        ('{"times": [[1]], "times": [[2]]}', "the key 'times' twice"),
        ('{"nodes": [1], "runtimes": {"a": {}, "a": {}}}', "the key 'a' twice"),
        ('{"times": []}', "there are no models"),
        ('{"times": [[]]}', "there are no workers"),
        ('{"times": 3}', "times is 3, expected a list"),
        ('{"times": [3]}', r"times\[0\] is 3, expected a list"),
        ('{"times": [[1, 2], [1]]}', r"times\[1\] has 1 entries"),
        ('{"times": [[1]], "available": [[]]}', "partition 0 is held by no worker"),
        ('{"times": [[1]], "available": [[1]]}', "partition 0 is held by worker 1"),
        ('{"times": [[1]], "available": [[-1]]}', r"available\[0\] is -1, expected a whole number from 0"),
        ('{"times": [[1]], "available": [[0, 0]]}', r"available\[0\] names a worker twice"),
        ('{"times": [[1]], "available": []}', "there are no partitions"),
        ('{"times": [[1]], "available": [0]}', r"available\[0\] is 0, expected a list"),
        ('{"times": [[1]], "available": null}', "available is null, expected a list"),
        ('{"times": [[1]], "epochs": 0}', "epochs is 0, expected a whole number from 1"),
        ('{"times": [[1]], "epochs": 1.5}', "epochs is 1.5, expected a whole number"),
        ('{"times": [[1]], "epochs": true}', "epochs is true, expected a whole number"),
        ('{"times": [[1, 1], [1, 1]], "epochs": 1000000}', "has 4,000,000 sub-epochs"),
        ('{"nodes": [], "runtimes": {"a": {}}}', "there are no workers"),
        ('{"nodes": [0], "runtimes": {}}', r"nodes\[0\] is 0, expected a whole number from 1"),
        (
            '{"nodes": [1000000], "runtimes": {}}',
            r"nodes\[0\] is 1000000, expected a whole number from 1 to 1024",
        ),
        ('{"nodes": [1], "runtimes": {}}', "there are no models"),
        ('{"nodes": [1], "runtimes": []}', "runtimes is a list, expected an object"),
        ('{"nodes": [1], "runtimes": {"a": 1}}', r"runtimes\['a'\] is 1, expected an object"),
        ('{"nodes": [1], "runtimes": {"a": {"0": 1}}}', r"runtimes\['a'\]\['0'\] is 1, expected an object"),
        (
            '{"nodes": [1], "runtimes": {"a": {"x": {}}}}',
            r"runtimes\['a'\] has the key 'x', expected a whole number",
        ),
        ('{"nodes": [1], "runtimes": {"a": {"00": {}}}}', "has the key '00', expected a whole number"),
        (
            '{"nodes": [1], "runtimes": {"a": {"0": {"1.0": 1}}}}',
            "has the key '1.0', expected a whole number",
        ),
        (
            '{"nodes": [1], "runtimes": {"a": {"1": {"1": 1}}}}',
            "runtimes for node 1, expected a node from 0 to 0",
        ),
        ('{"nodes": [1], "runtimes": {"a": {"0": {"2": 1}}}}', "asks for 2 GPUs"),
        ('{"nodes": [1, 1], "runtimes": {"a": {"0": {"1": 1}}}}', "fits on no worker that holds partition 1"),
        ('{"nodes": [1], "runtimes": {"a": {"0": {}}}}', "fits on no worker that holds partition 0"),
    ],
)
def test_what_is_wrong_with_an_instance_is_named(text: str, said: str) -> None:
    """The entry, what it is, and what was expected."""
    with pytest.raises(InstanceError, match=said):
        parse(text)


@pytest.mark.parametrize(
    "value",
    [
        *("0", "-1", "0.0", "-0.5", "NaN", "Infinity", "-Infinity", "1e400", "1e-9", "1e300", "9" * 400),
        *("true", "false", "null", '"1"', "[1]", "{}"),
    ],
)
@pytest.mark.parametrize(
    "form", ['{"times": [[1, %s]]}', '{"nodes": [1], "runtimes": {"a": {"0": {"1": %s}}}}']
)
def test_a_time_that_is_none_is_named(form: str, value: str) -> None:
    """Only a finite number above 0 is, and neither a lifetime nor an instant."""
    with pytest.raises(
        InstanceError, match=r"^(times\[0\]\[1\]|runtimes\['a'\]\['0'\]\['1'\]) is .*expected"
    ):
        parse(form % value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(("times", "available", "epochs", "nodes", "runtimes", "x")), JSON))
@settings(deadline=None, max_examples=200)
def test_whatever_is_given_is_an_instance_or_an_error(value: dict[str, Any]) -> None:
    """No other exception comes out, and the error is one line."""
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
def test_an_answer_tells_the_schedule(text: str, label: int | str) -> None:
    """Makespan, bound, proof, who and how long, and for each sub-epoch where it runs when."""
    sub_epochs = [SubEpoch(model=m, partition=0, worker=0, start=float(m), end=m + 1.0) for m in (0, 1)]
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


def test_sub_epochs_side_by_side_are_told_on_different_devices() -> None:
    """Two models on the two GPUs of a node."""
    instance = parse('{"nodes": [2], "runtimes": {"a": {"0": {"1": 1}}, "b": {"0": {"1": 1}}}}')
    sub_epochs = [SubEpoch(model=m, partition=0, worker=0, start=0.0, end=1.0) for m in (0, 1)]
    solution = Solution(
        schedule=Schedule.of(sub_epochs),
        lower_bound=1.0,
        is_optimal=True,
        source="fifo",
        seconds=0.0,
        note="why",
    )
    found = answer(instance, solution)
    assert [sub_epoch["devices"] for sub_epoch in found["sub_epochs"]] == [[0], [1]]
    assert found["note"] == "why"
