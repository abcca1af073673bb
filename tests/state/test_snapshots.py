"""Snapshots of folds: a snapshot plus the rest of the log equals the complete fold."""

from __future__ import annotations

import io
import os
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.state import ExperimentState
from cerebro.state.cluster import ClusterState
from cerebro.state.experiment import fold
from cerebro.state.snapshots import (
    packed,
    restored,
    restored_cluster,
    snapshot_format,
    unpacked,
)
from tests.state.histories import History


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    at=st.floats(0, 1),
    validated=st.booleans(),
    devices=st.integers(1, 3),
    has_parallel_plans=st.booleans(),
    has_gangs=st.booleans(),
)
def test_a_snapshot_plus_the_rest_equals_the_complete_fold(
    seed: int, at: float, validated: bool, devices: int, has_parallel_plans: bool, has_gangs: bool
) -> None:
    """A second snapshot from the restored state works too."""
    history = History(
        Random(seed),
        validated=validated,
        epochs=2,
        devices=devices,
        models=2 + devices,
        has_parallel_plans=has_parallel_plans,
        workers=3,
        has_gangs=has_gangs,
    )
    for _ in range(120):
        history.step()
    cut = round(at * len(history.log))
    begun = unpacked(packed(fold("one", history.log[:cut])), ExperimentState)
    for number, event in enumerate(history.log[cut:]):
        if number == 7:
            begun = unpacked(packed(begun), ExperimentState)
        begun.apply(event)
    assert fold("one", history.log) == history.state
    assert list(differences(begun, history.state)) == []


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Yield the paths where two values differ. NaN equals NaN here."""
    if type(one) is not type(other):
        yield where
    elif is_dataclass(one) and not isinstance(one, type):
        for field in fields(one):
            yield from differences(
                getattr(one, field.name), getattr(other, field.name), f"{where}.{field.name}"
            )
    elif isinstance(one, dict):
        if list(one) != list(other):
            yield f"{where}: keys"
        for key in one.keys() & other.keys():
            yield from differences(one[key], other[key], f"{where}[{key}]")
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            yield f"{where}: length"
        for number, (each, another) in enumerate(zip(one, other, strict=False)):
            yield from differences(each, another, f"{where}[{number}]")
    elif one != other and not (one != one and other != other):
        yield where


def test_snapshots_preserve_object_identity() -> None:
    """An open task is also in the run's tasks, so a change must show in both."""
    history = History(Random(4), validated=True, epochs=2)
    while not history.run.tasks.open:
        history.step()
    found = unpacked(packed(history.state), ExperimentState).runs[history.run.id]
    for key, task in found.tasks.open.items():
        assert found.tasks.by_key[key] is task


class Store:
    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.reads: list[tuple[str, str]] = []

    def snapshot(self, experiment: str, of_format: str) -> bytes | None:
        self.reads.append((experiment, of_format))
        return self.content


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        zlib.compress(b"no pickle"),
        zlib.compress(pickle.dumps(Evil())),
        zlib.compress(pickle.dumps(os.system)),
        zlib.compress(pickle.dumps(io.BytesIO)),
        zlib.compress(pickle.dumps(snapshot_format)),
        zlib.compress(pickle.dumps({"seq": 3})),
        packed(ExperimentState(name="another")),
        packed(ExperimentState(name="one"))[:-3],
    ],
)
def test_an_invalid_snapshot_is_ignored_and_executes_nothing(content: bytes) -> None:
    """The reader falls back to folding the log from its first event."""
    store = Store(content)
    assert restored(store, "one") == ExperimentState(name="one")
    assert restored_cluster(store) == ClusterState()
    assert store.reads == [("one", snapshot_format()), ("", snapshot_format())]
