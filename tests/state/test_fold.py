"""The fold of arbitrary logs: accepted events, refused events, and no side effects of a refusal."""

from __future__ import annotations

import copy
import dataclasses
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    DeletionRequested,
    Event,
    ExperimentArchived,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    RunFinished,
    RunPaused,
    RunRequested,
    RunResumed,
    RunStarted,
    RunStopRequested,
    SchedulerChanged,
    TagsChanged,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import IllegalEventError, UnreadableError
from cerebro.state import ExperimentState, repair_state
from cerebro.state.experiment import fold
from tests.state.soundness import assert_sound
from tests.state.stories import Story, joined, lost, sub_epoch, validation

KEYS = [
    *(str(sub_epoch(e, p, m)) for e, p, m in product((1, 2, 3), (0, 1, 7), ("m00", "m01"))),
    *(str(validation(e)) for e in (1, 2)),
    str(sub_epoch(1, 0, "m99")),
    "fit-9/train/m00/e1/p0",
    "etl-1/etl/train/p0",
    "test-1/test/m00/p0",
    "test-1/test/m00",
    "fit-1/etl/train/p0",
    "fit-1/test/m00/p0",
    "fit-1/valid/m99/e1",
]


@st.composite
def commands(draw: st.DrawFn) -> Any:
    """Generate a user command, valid or not."""
    run = draw(st.sampled_from(["fit-1", "fit-1", "fit-1", "fit-2", "fit-9"]))
    model = draw(st.sampled_from(["m00", "m01", "m99"]))
    return draw(
        st.sampled_from(
            [
                *[ModelStopRequested(run=run, model=model)] * 2,
                *[ModelResumed(run=run, model=model)] * 3,
                *[ModelRetried(run=run, model=model)] * 3,
                SchedulerChanged(run=run, scheduler="random"),
                ExperimentArchived(is_archived=True),
                TagsChanged(tags={"a": "b", "c": None}, run=run, model=model),
                DeletionRequested(),
            ]
        )
    )


@st.composite
def events(draw: st.DrawFn, state: ExperimentState) -> Any:
    """Generate an event, legal or not; most have the expected attempt and worker."""
    kind = draw(st.sampled_from([*["task"] * 8, "run", "worker", "worker", "command"]))
    if kind == "run":
        run = draw(st.sampled_from(["fit-1", "fit-1", "fit-2", "fit-9"]))
        return draw(
            st.sampled_from(
                [
                    RunPaused(run=run, reason="full"),
                    RunResumed(run=run),
                    RunStopRequested(run=run),
                    RunFinished(run=run, outcome="finished"),
                    state.runs["fit-1"].plan and RunStarted(run=run, plan=state.runs["fit-1"].plan),
                    RunRequested(run=run, request=state.runs["fit-1"].request),
                ]
            )
        ) or RunResumed(run=run)
    if kind == "command":
        return draw(commands())
    number = draw(st.integers(0, 2))
    if kind == "worker":
        return draw(st.sampled_from([joined(number, incarnation="b"), lost(number), joined(number)]))
    open_now = [str(t.key) for run in state.runs.values() for t in run.tasks.open.values()]
    key = draw(st.sampled_from([*open_now * 4, *KEYS]))
    run_state = state.runs.get(key.split("/")[0])
    known = run_state.tasks.by_key.get(key) if run_state else None
    attempt = (known.attempt if known else 0) + draw(st.sampled_from([0, 0, 0, 1, 1, 2]))
    worker = draw(st.sampled_from([known.worker] * 3 if known and known.worker else [f"worker-{number}"]))
    named = {"task": key, "attempt": attempt, "worker": worker or f"worker-{number}"}
    result = TaskResult(
        rows=1, metrics={"loss": 0.5}, checkpoint=CheckpointRef(name=f"c{state.seq}", checksum="-", size=1)
    )
    failure = Failure(kind=draw(st.sampled_from(list(FailureKind))), message="boom")
    return draw(
        st.sampled_from(
            [
                TaskAssigned.model_validate(named),
                TaskStarted.model_validate(named),
                TaskCommitted.model_validate({**named, "result": result}),
                TaskFailed.model_validate({**named, "failure": failure}),
                TaskRevoked.model_validate({**named, "reason": "idle"}),
            ]
        )
    )


@settings(deadline=None, max_examples=60)
@given(data=st.data(), validated=st.booleans())
def test_an_illegal_event_raises_and_changes_nothing(data: st.DataObject, validated: bool) -> None:
    """The fold applies any event in full, or refuses it with `IllegalEventError`."""
    story = Story()
    story.fit(validated=validated)
    state = story.state
    for _ in range(data.draw(st.integers(5, 40))):
        event = data.draw(events(state))
        # Compare as text: it shows all fields, and a deep copy takes ten times as long.
        before, seq = repr(state), state.seq
        try:
            state.apply(event)
        except IllegalEventError:
            assert repr(state) == before
        else:
            assert state.seq == seq + 1
            assert_late_wishes_change_nothing(state, before)
        assert_sound(state)


def assert_late_wishes_change_nothing(state: ExperimentState, before: str) -> None:
    """A late command appears only in the list of commands."""
    if state.commands and state.commands[-1].seq == state.seq and state.commands[-1].is_late:
        unheard = dataclasses.replace(state, seq=state.seq - 1, commands=state.commands[:-1])
        assert repr(unheard) == before


def test_the_same_log_folds_to_the_same_state() -> None:
    """A fold from the start equals the incremental state."""
    story = Story()
    story.etl()
    story.fit(validated=True)
    story.epoch(1)
    story.validate(1)
    assert fold("one", story.log) == story.state


@pytest.mark.parametrize("seq", [1, 2, 4, 99])
def test_a_gap_in_the_log_is_refused(seq: int) -> None:
    """Both a repeated and a skipped sequence number."""
    story = Story()
    before = copy.deepcopy(story.state)
    with pytest.raises(IllegalEventError, match="follows event 2"):
        story.state.apply(joined(5).model_copy(update={"seq": seq}))
    assert story.state == before


TRAINED = TaskResult(rows=1, metrics={"loss": 0.5}, checkpoint=CheckpointRef(name="c", checksum="-", size=1))


@pytest.mark.parametrize("error", [KeyError("m99"), MemoryError(), KeyboardInterrupt()])
def test_a_state_torn_within_an_event_is_repaired(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The state is marked torn, refuses events, and is folded again up to the event before."""
    story = Story()
    story.etl()
    story.fit()
    story.do(sub_epoch(1, 0), 0, TRAINED)
    before = fold("one", story.log[:-1])
    state = copy.deepcopy(before)

    def fails(*given: object, **named: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(
            "cerebro.state.tasks.attempt_events.commit_events.commit", fails
        )  # after the task was closed
        with pytest.raises(IllegalEventError if isinstance(error, KeyError) else type(error)):
            state.apply(story.log[-1])
    assert state.torn
    assert (state.seq, state.runs) != (before.seq, before.runs)
    with pytest.raises(IllegalEventError, match="TaskCommitted does not fit"):
        state.apply(story.log[-1])

    def pages(after: int) -> list[Event]:
        found = list(story.log[after : after + 7])
        if after + 7 >= len(story.log):
            raise UnreadableError.for_event("one", len(story.log) + 1, "damaged", found)
        return found

    mended = repair_state(state, pages)
    assert mended == before
    mended.apply(story.log[-1])
    assert mended == story.state
