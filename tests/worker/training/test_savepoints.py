"""A sub-epoch resumed from savepoints is bit-identical to an uninterrupted one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cerebro.data.mapped import MappedRows
from cerebro.errors import SpecError
from cerebro.spec import Checkpoint, DataLoader
from cerebro.worker.training.checkpoints.checkpoint import State
from tests.worker.training.resuming import BATCHES, ROWS, Loop, Spec, learn, sub_epoch, template, tracked
from tests.worker.training.test_checkpoint import assert_equal

pytestmark = pytest.mark.usefixtures("light")


@pytest.fixture(scope="module")
def start(rows: MappedRows) -> State:
    """The model's state after a sub-epoch, with momentum and an active schedule."""
    with sub_epoch(rows) as before:
        state = before.attempt()
    assert state is not None
    return state


@pytest.fixture(scope="module")
def whole(rows: MappedRows, start: State) -> tuple[State, dict[str, float]]:
    """The state and metrics of an uninterrupted sub-epoch."""
    with sub_epoch(rows, start=start) as one:
        state = one.attempt()
    assert state is not None
    return state, one.metrics


attempts = st.lists(
    st.tuples(st.sets(st.integers(1, BATCHES - 1), max_size=4), st.integers(0, BATCHES - 1)), max_size=5
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(story=attempts, last=st.sets(st.integers(1, BATCHES - 1), max_size=3))
def test_savepoints_and_kills_change_no_bit_of_a_sub_epoch(
    rows: MappedRows,
    start: State,
    whole: tuple[State, dict[str, float]],
    story: list[tuple[set[int], int]],
    last: set[int],
) -> None:
    """Covers weights, momentum, schedule, sums and the user's counts; each row is trained once."""
    with sub_epoch(rows, start=start) as one:
        for saves, stop in story:
            one.attempt(saves, stop)
        state = one.attempt(last)
    assert state is not None
    assert_equal(state, whole[0])
    assert one.metrics == whole[1]
    assert sorted(state["checkpoint"]["ids"]) == list(range(ROWS))


class Early(Spec):
    """Leaves its loop early; calls a function before the loop, or after each batch."""

    def __init__(self, say: Callable[[DataLoader, Checkpoint], object]) -> None:
        self.say, self.late = say, False

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        if not self.late:
            self.say(dataloader, checkpoint)
        for _ in dataloader:
            if self.late:
                self.say(dataloader, checkpoint)
            break
        return {}


def _both(loader: DataLoader, checkpoint: Checkpoint) -> None:
    loader.savepoint()
    loader.savepoint()


SAYINGS: list[tuple[Callable[[DataLoader, Checkpoint], object], str]] = [
    (
        lambda loader, _: loader.savepoint(every=0),
        r"savepoint\(every=0\): expected a whole number of batches from 1",
    ),
    (lambda loader, _: loader.savepoint(every=-1), "every=-1"),
    (lambda loader, _: loader.savepoint(every=True), "every=True"),
    (lambda loader, _: loader.savepoint(every=2.0), "every=2.0"),  # type: ignore[arg-type]
    (lambda loader, _: loader.savepoint({}), "got a dict, expected a function or None"),  # type: ignore[arg-type]
    (_both, "was called before: call it once in a sub-epoch"),
    (
        lambda loader, _: [loader.progress({}), loader.progress({})],
        "was called before: keep all values in one dict",
    ),
    (lambda loader, _: loader.progress([("a", 1)]), "got a list, expected a dict"),  # type: ignore[arg-type]
    (
        lambda loader, _: loader.progress({"a": [1, frozenset({2})]}),
        r"progress\(\)\['a'\]\[1\] holds a builtins.frozenset, which cannot",
    ),
]


@pytest.mark.parametrize(("say", "message"), SAYINGS)
def test_invalid_arguments_are_errors_at_the_call(
    rows: MappedRows, say: Callable[[DataLoader, Checkpoint], object], message: str
) -> None:
    """The error has the expected value."""
    with sub_epoch(rows, Early(say)) as one, pytest.raises(SpecError, match=message):
        one.attempt()


@pytest.mark.parametrize(
    ("say", "what"),
    [
        (lambda loader, _: loader.savepoint(), r"dataloader.savepoint\(\)"),
        (lambda loader, _: loader.progress({}), r"dataloader.progress\(\)"),
        (lambda _, checkpoint: checkpoint.track(x=torch.nn.Linear(1, 1)), r"checkpoint.track\(\)"),
    ],
    ids=["savepoint", "progress", "track"],
)
def test_a_call_after_the_loop_has_started_is_an_error(
    rows: MappedRows, say: Callable[[DataLoader, Checkpoint], object], what: str
) -> None:
    """A resumed sub-epoch would reach the call at another batch."""
    spec = Early(say)
    spec.late = True
    with (
        sub_epoch(rows, spec) as one,
        pytest.raises(SpecError, match=what + " was called after the first batch"),
    ):
        one.attempt()


# --- errors during a savepoint ----------------------------------------------------------------------


def test_a_full_volume_skips_the_savepoint_and_the_sub_epoch_continues(
    rows: MappedRows, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says so once; the next savepoint may succeed."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with sub_epoch(rows, Loop(template)) as never, sub_epoch(rows, Loop(template)) as one:
        expected = never.attempt()
        write, left = one.write, iter([True, True, False])

        def sometimes(state: State, batch: int, rows: int) -> None:
            with monkeypatch.context() as patched:
                if next(left):
                    patched.setattr(os, "fsync", full)
                write(state, batch, rows)

        monkeypatch.setattr(one, "write", sometimes)
        assert_equal(one.attempt({2, 4, 6}), expected)
        assert one.taken == [6]
        assert [path.name for path in one.folder.iterdir()] == [one.newest]
    assert ["no space to write" in record.getMessage() for record in caplog.records] == [True]


def test_an_unsavable_state_skips_only_the_savepoint(
    rows: MappedRows, caplog: pytest.LogCaptureFixture
) -> None:
    """The state may be valid again later."""

    def mending(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
        checkpoint["bad"] = frozenset({1})
        template(network, dataloader, checkpoint)
        checkpoint["bad"] = [1]

    with sub_epoch(rows, Loop(mending)) as one:
        assert one.attempt({2, 4}) is not None
    assert one.taken == []
    assert [
        "checkpoint['bad'] holds a builtins.frozenset" in record.getMessage() for record in caplog.records
    ] == [True]


@pytest.mark.parametrize("is_declared", [False, True])
def test_training_loops_of_libraries_have_no_savepoints(
    rows: MappedRows, caplog: pytest.LogCaptureFixture, is_declared: bool
) -> None:
    """The library's variables are not saved; user code may declare that it can resume without them."""

    def library(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
        optimizer = tracked(network, checkpoint)
        if is_declared:
            dataloader.savepoint()
        for batch in dataloader.as_torch():
            learn(network, optimizer, batch)

    with sub_epoch(rows, Loop(library)) as one:
        assert one.attempt({2, 4}) is not None
    assert one.taken == ([2, 4] if is_declared else [])
    assert ["hands its batches to a library" in record.getMessage() for record in caplog.records] == (
        [] if is_declared else [True]
    )
