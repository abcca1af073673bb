"""Epoch ends, breaks, bounds and absences match the spans' clock and the report."""

from __future__ import annotations

import pytest

from cerebro.client.reporting import Drawings
from cerebro.contract.events import RunFinished, RunResumed, RunStopRequested
from cerebro.figures import description, landmarks, spans, table
from cerebro.state.reports.schedule_report import schedule_now
from tests.client.reporting.stories import resumed
from tests.state.stories import Story, joined, lost

BREAK_S = 1000.0


@pytest.fixture
def story() -> Story:
    return resumed(BREAK_S)


def test_an_epoch_ends_with_its_last_sub_epoch(story: Story) -> None:
    """A report's makespan excludes breaks; the time axis includes them."""
    found = spans(story.run, story.time)
    last = [max(span.end_s for span in found if span.epoch == epoch) for epoch in (1, 2)]
    assert landmarks(story.state, story.run, story.time).epochs == ((1, last[0]), (2, last[1]))
    assert last[1] > BREAK_S


def test_a_break_lies_between_the_sub_epochs_around_it(story: Story) -> None:
    """No sub-epoch overlaps it."""
    found = landmarks(story.state, story.run, story.time)
    ((since, until),) = found.breaks
    assert until - since == pytest.approx(BREAK_S + 1)
    assert all(span.end_s <= since or span.start_s >= until for span in spans(story.run, story.time))


def test_the_bound_is_a_duration_and_lies_after_a_break_it_exceeds(story: Story) -> None:
    """The bound is the sub-epochs' time per worker, drawn after this much open time of the run."""
    found = landmarks(story.state, story.run, story.time)
    seconds = sum(span.end_s - span.start_s for span in spans(story.run, story.time)) / 2
    assert found.lower_bound_s == pytest.approx(seconds)
    ((since, until),) = found.breaks
    assert found.bound_at_s == pytest.approx(seconds + (until - since if seconds > since else 0.0))


def test_figure_and_report_show_the_same_idle_time(story: Story) -> None:
    """Both exclude breaks, and the table says that it counts sub-epochs."""
    now = schedule_now(story.state, story.run, story.time)
    assert now is not None
    assert 0 < now.idle_share < 1
    drawn = Drawings(state=story.state, run=story.run, now=story.time).schedule()
    assert f"idle for {now.idle_share:.1%} of their time" in description(drawn)
    for line in table(drawn).rows:
        assert float(line[3] or 0) + float(line[4] or 0) == pytest.approx(now.makespan_s, abs=0.02)


def test_a_worker_is_absent_from_its_loss_until_it_is_back() -> None:
    """A late worker is absent until it joins. Time before the first sub-epoch is no absence."""
    story = Story(workers=2)
    story.append(lost(0), joined(0, incarnation="b"))
    story.etl()
    story.fit()
    story.append(lost(1), joined(1, incarnation="b"))
    story.train(1, 0)
    origin = story.run.clock.first_start
    story.append(lost(1, incarnation="b", reason="killed"))
    killed = story.time
    story.append(joined(1, incarnation="c"), joined(2))
    came = story.time
    story.append(lost(0, incarnation="b"))
    found = landmarks(story.state, story.run, story.time + 5).absences
    assert [(a.worker, a.start_s, a.end_s, a.lost) for a in found] == [
        ("worker-2", 0.0, came - origin, ""),
        ("worker-1", killed - origin, came - 1 - origin, "killed"),
        ("worker-0", came + 1 - origin, None, "silent"),
    ]


def test_a_worker_lost_between_runs_is_absent_when_the_run_resumes() -> None:
    """Changes between runs are seen when a run opens again."""
    story = Story(workers=2)
    story.etl()
    story.fit()
    story.train(1, 0)
    origin = story.run.clock.first_start
    story.append(RunStopRequested(run="fit-1"), RunFinished(run="fit-1", outcome="stopped"))
    story.append(lost(1))
    lost_at = story.time - origin
    assert landmarks(story.state, story.run, story.time).absences == ()
    story.append(RunResumed(run="fit-1"), joined(2))
    found = landmarks(story.state, story.run, story.time).absences
    assert {(a.worker, a.start_s, a.end_s) for a in found} == {
        ("worker-1", lost_at, None),
        ("worker-2", 0.0, story.time - origin),
    }
