"""Attempts read from part of a log equal those in the complete fold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import Event, TaskAssigned, TaskCommitted, TaskFailed, TaskRevoked, TaskStarted
from cerebro.contract.stored.segments import Segment, SegmentsAnswer
from cerebro.errors import LostEventsError
from cerebro.state import log_pages
from cerebro.state.log_pages import Log, LogPages, Window
from cerebro.state.reports.timeline import TaskAttempt, task_attempts
from cerebro.state.tasks.past_attempts import PastAttempts, attempt_events
from tests.state.histories import History

PAGE = 20


class Store:
    """A log with its oldest part in segments; counts the reads."""

    def __init__(self, log: Sequence[Event], cuts: Sequence[int] = (), lost: int | None = None) -> None:
        self._log, self.num_reads = log, 0
        self._segments = [
            Segment(
                first=first + 1,
                last=last,
                began=log[first].time,
                ended=log[last - 1].time,
                entries=last - first,
                size=0,
                sha256="0" * 64,
                file=f"{first}.segment",
            )
            for first, last in zip([0, *cuts[:-1]], cuts, strict=False)
        ]
        self._lost = self._segments[lost] if lost is not None else None

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        """Return a page; like kvs_api, raise if the page reaches into a lost segment."""
        self.num_reads += 1
        page = self._log[after : after + PAGE]
        if self._lost and page and page[0].seq <= self._lost.last and page[-1].seq >= self._lost.first:
            raise LostEventsError.for_event(experiment, self._lost.first, f"{self._lost.file} is gone")
        return page

    def segments(self, experiment: str) -> SegmentsAnswer:
        """Return the segments before the part in the database."""
        return SegmentsAnswer(segments=tuple(self._segments))


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_pages, "PAGE", PAGE)


ATTEMPT_EVENTS = (TaskAssigned, TaskStarted, TaskCommitted, TaskFailed, TaskRevoked)


def history(seed: int, *, steps: int = 150, **more: bool) -> History:
    history = History(Random(seed), validated=True, epochs=3, devices=2, workers=3, **more)
    for _ in range(steps):
        history.step()
    return history


def read(store: Store, log: Sequence[Event], since: float, until: float, **more: int) -> Window:
    known = Log("one", 0.0, len(log))
    return LogPages(store).window(known, "fit-1", since, until, max_events=more.get("max_events", 10**6))


def comparable(tried: TaskAttempt) -> tuple[object, ...]:
    """Return comparable fields, without the assignment time, which the fold forgets for most sub-epochs."""
    attempt = tried.attempt
    return (
        str(tried.key),
        *(attempt.number, attempt.worker, attempt.started, attempt.ended, attempt.outcome),
        *(attempt.start_s, attempt.devices, str(attempt.parallel_plan), attempt.other_members),
    )


def overlapping(
    found: Sequence[TaskAttempt], since: float, until: float
) -> dict[tuple[object, ...], TaskAttempt]:
    here = [
        each
        for each in found
        if (each.attempt.started or each.attempt.assigned) <= until
        and (not each.attempt.outcome or each.attempt.ended >= since)
    ]
    return {comparable(each): each for each in here}


def in_pages(log: Sequence[Event], since: float, until: float) -> set[tuple[object, ...]]:
    """Task and attempt of each event in the pages of a time range. Longer attempts may be missed."""
    first = next((at for at, event in enumerate(log) if event.time >= since), len(log) - 1) // PAGE
    last = next((at for at, event in enumerate(log) if event.time > until), len(log) - 1) // PAGE
    events = log[first * PAGE : (last + 1) * PAGE]
    return {(each.task, each.attempt) for each in events if isinstance(each, ATTEMPT_EVENTS)}


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), has_parallel_plans=st.booleans(), has_gangs=st.booleans(), data=st.data())
def test_a_time_range_has_the_attempts_of_the_fold(
    seed: int, has_parallel_plans: bool, has_gangs: bool, data: st.DataObject
) -> None:
    """For any log and any segments; only sub-epochs that are reopened later may differ."""
    random_history = history(seed, has_parallel_plans=has_parallel_plans, has_gangs=has_gangs)
    log = random_history.log
    cuts = sorted(data.draw(st.sets(st.integers(1, len(log) - 1), max_size=5), label="cuts"))
    ends = st.floats(log[0].time - 1, log[-1].time + 1)
    since, until = sorted((data.draw(ends, label="one end"), data.draw(ends, label="other end")))
    expected = overlapping(list(task_attempts(random_history.run)), since, until)
    window = read(Store(log, cuts), log, since, until)
    found = {comparable(each): each for each in window.task_attempts}
    known = in_pages(log, since, until)
    expected = {name: each for name, each in expected.items() if name in found or name[:2] in known}
    assert_same(found, expected, random_history)
    assert (window.guessed, window.problems, window.is_cut) == (0, (), False)
    whole = read(Store(log, cuts), log, -math.inf, math.inf)
    assert_same(
        {comparable(each): each for each in whole.task_attempts},
        {comparable(each): each for each in task_attempts(random_history.run)},
        random_history,
    )


def assert_same(
    found: dict[tuple[object, ...], TaskAttempt],
    expected: dict[tuple[object, ...], TaskAttempt],
    history: History,
) -> None:
    assert found.keys() == expected.keys()
    for name, each in found.items():
        if each.sub_epoch != expected[name].sub_epoch:
            assert (
                expected[name].sub_epoch is None
            )  # reopened later, and no later sub-epoch depends on this sub-epoch
            assert (each.key.epoch, each.key.partitions) in history.model(
                each.key.model or ""
            ).checkpoints.undone


def test_an_attempt_started_before_the_time_range_is_completed_from_its_commit() -> None:
    """The commit gives the duration, so the start time is known, but not the devices."""
    log = history(7).log
    whole = PastAttempts(run="fit-1")
    whole.take(attempt_events(log))
    commits = [each for each in whole.window(-math.inf, math.inf) if each.sub_epoch is not None]
    for commit in commits:
        assert commit.sub_epoch is not None
        past = PastAttempts(run="fit-1")
        past.take(attempt_events(event for event in log if event.time == commit.attempt.ended))
        found = {each.key: each for each in past.window(-math.inf, math.inf)}[commit.key]
        assert found.sub_epoch is not None
        took = (
            commit.sub_epoch.timings.load_s
            + commit.sub_epoch.timings.compute_s
            + commit.sub_epoch.timings.save_s
        )
        assert found.sub_epoch.ended == commit.sub_epoch.ended
        assert found.sub_epoch.returned.metrics == commit.sub_epoch.returned.metrics
        assert (
            found.sub_epoch.started == found.sub_epoch.begun == pytest.approx(commit.sub_epoch.ended - took)
        )
        assert found.is_guessed


def test_a_too_long_time_range_is_read_from_its_end() -> None:
    """The result says where it starts."""
    log = history(3, steps=400).log
    window = read(Store(log), log, log[0].time, log[-1].time, max_events=3 * PAGE)
    assert window.is_cut
    assert window.since > log[0].time
    assert window.events == len(log)
    newest = read(Store(log), log, window.since, window.until)
    assert [comparable(each) for each in window.task_attempts] == [
        comparable(each) for each in newest.task_attempts
    ]


def test_reading_a_time_range_does_not_grow_with_the_log() -> None:
    """A log eight times as long needs as many page reads."""
    requests = []
    for steps in (600, 4800):
        log: list[Event] = []
        events = history(5, steps=150).log
        while len(log) < steps:
            elapsed_s = log[-1].time if log else 0.0
            log += [
                event.model_copy(update={"seq": len(log) + n, "time": elapsed_s + event.time})
                for n, event in enumerate(events, start=1)
            ]
        store = Store(log, range(3 * PAGE, len(log) - 3 * PAGE, 3 * PAGE))
        middle = log[len(log) // 2].time
        read(store, log, middle, log[len(log) // 2 + 2 * PAGE].time)
        requests.append(store.num_reads)
    assert abs(requests[1] - requests[0]) <= 2


def test_a_lost_segment_is_reported_and_the_rest_is_read() -> None:
    """Pages that reach into the lost segment are missing too."""
    log = history(11, steps=400).log
    cuts = (5 * PAGE, 8 * PAGE, 11 * PAGE)
    store = Store(log, cuts, lost=1)
    window = read(store, log, log[0].time, log[-1].time)
    assert window.problems == ("100.segment is gone",)
    ends = {each.attempt.ended for each in window.task_attempts if each.attempt.outcome}
    assert ends == {
        each.attempt.ended
        for each in read(Store(log, cuts), log, log[0].time, log[-1].time).task_attempts
        if each.attempt.outcome and not log[cuts[0]].time <= each.attempt.ended <= log[cuts[1] - 1].time
    }
    inside = read(store, log, log[cuts[0] + 1].time, log[cuts[0] + 3].time)
    assert inside.problems
    behind = read(store, log, log[cuts[1] + PAGE].time, log[cuts[1] + 2 * PAGE].time)
    assert not behind.problems
    assert behind.task_attempts


def test_complete_pages_are_read_once() -> None:
    """A repeated read fetches only incomplete pages."""
    log = history(13, steps=300).log
    store = Store(log, (6 * PAGE,))
    pages, known = LogPages(store), Log("one", 0.0, len(log))
    first = pages.window(known, "fit-1", log[20].time, log[60].time)
    num_reads = store.num_reads
    assert pages.window(known, "fit-1", log[20].time, log[60].time) == first
    assert store.num_reads == num_reads
    pages.window(known._replace(created=1.0), "fit-1", log[20].time, log[60].time)
    assert store.num_reads > num_reads
