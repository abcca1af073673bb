"""Reading the store for many viewers: seldom, within bounds, and never an experiment that is gone."""

from __future__ import annotations

from collections import Counter

import pytest

from cerebro.contract.events import LivePoint
from cerebro.errors import IllegalEventError, NotFoundError, StoreUnavailableError
from dispatcher.reading import reader as reading
from dispatcher.reading.read_model import ReadModel
from dispatcher.reading.reader import FRESH_S, Reader
from tests.dispatcher.fakes import Clock, FakeStore
from tests.dispatcher.stories import NOW, Story, running_story, status


class Desk:
    """A reader over a store in memory, with a clock to turn."""

    def __init__(self) -> None:
        self.store, self.clock = FakeStore(), Clock()
        self.reader = Reader(self.store, clock=self.clock, monotonic=self.clock)

    def seq(self, name: str = "digits", patience_s: float = 2.0) -> int:
        return self.reader.look(name, lambda read_model: read_model.state.seq, patience_s=patience_s)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def long_story(models: int = 500) -> Story:
    """More events than one read returns."""
    story = Story("long")
    story.workers_join()
    story.etl()
    story.fit(models=models, epochs=1)
    for model in range(models):
        story.train(f"m{model:02}", 1)
    return story


def test_an_experiment_is_read_once_in_half_a_second_however_many_look(desk: Desk) -> None:
    desk.store.add(running_story())
    for _ in range(50):
        desk.seq()
        desk.reader.version("digits")
    assert Counter(desk.store.calls) == {"experiment": 1, "events": 1, "live": 1}
    desk.clock.now += FRESH_S
    desk.seq()
    assert Counter(desk.store.calls) == {"experiment": 1, "events": 2, "live": 2}


def test_the_version_changes_with_the_log_with_live_points_and_with_an_outage(desk: Desk) -> None:
    story = running_story()
    desk.store.add(story)
    versions = [desk.reader.version("digits")]
    desk.clock.now += 1
    assert desk.reader.version("digits") == versions[0]
    story.pause("no room")
    desk.clock.now += 1
    versions.append(desk.reader.version("digits"))
    desk.store.points["digits"] = [LivePoint(seq=1, task="fit-1/train/m05/e1/p0", attempt=1, rows=5)]
    desk.clock.now += 1
    versions.append(desk.reader.version("digits"))
    desk.store.is_away = True
    desk.clock.now += 1
    versions.append(desk.reader.version("digits"))
    assert len(set(versions)) == 4


def test_a_long_log_goes_on_in_the_background_and_says_that_it_is_not_complete(desk: Desk) -> None:
    desk.store.add(long_story())
    is_complete = desk.reader.look("long", lambda read_model: read_model.is_complete, patience_s=-1.0)
    assert not is_complete
    first = desk.seq("long", patience_s=0.0)
    assert first == 1000
    desk.reader.background.run()
    assert desk.reader.look("long", lambda read_model: read_model.is_complete)
    assert desk.seq("long") == len(desk.store.logs["long"])


def test_while_a_log_is_read_in_the_background_nobody_else_reads_it(desk: Desk) -> None:
    desk.store.add(long_story())
    desk.seq("long", patience_s=-1.0)
    before = Counter(desk.store.calls)["events"]
    for _ in range(5):
        desk.seq("long", patience_s=0.0)
    assert Counter(desk.store.calls)["events"] == before


def test_a_name_that_was_given_to_another_experiment_shows_the_other_one(desk: Desk) -> None:
    desk.store.add(running_story())
    assert desk.seq() > 0
    desk.store.add(Story("digits", began=NOW - 10))
    desk.clock.now += 10
    assert desk.seq() == 0


def test_a_deleted_experiment_is_not_found_any_more(desk: Desk) -> None:
    desk.store.add(running_story())
    desk.seq()
    del desk.store.records["digits"], desk.store.logs["digits"]
    desk.clock.now += 10
    with pytest.raises(NotFoundError):
        desk.seq()
    with pytest.raises(NotFoundError):
        desk.reader.version("digits")


def test_only_so_many_events_are_kept_and_the_oldest_looked_at_go_first(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = [running_story(name) for name in ("a", "b", "c")]
    monkeypatch.setattr(reading, "_MAX_EVENTS", 2 * len(stories[0].events) + 1)
    for story in stories:
        desk.store.add(story)
        desk.seq(story.record.name)
        desk.clock.now += 10
    desk.store.is_away = True
    assert desk.seq("c") > 0
    assert desk.seq("b") > 0
    with pytest.raises(StoreUnavailableError):
        desk.seq("a")


def test_live_points_count_for_what_is_kept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    stories = [running_story(name) for name in ("a", "b")]
    monkeypatch.setattr(reading, "_MAX_EVENTS", 2 * len(stories[0].events) + 10)
    for story in stories:
        name = story.record.name
        desk.store.add(story)
        desk.store.points[name] = [
            LivePoint(
                seq=n, time=NOW + n, task="fit-1/train/m05/e1/p0", attempt=1, rows=n, values={"loss": 1.0 / n}
            )
            for n in range(1, 101)
        ]
        desk.seq(name)
        desk.clock.now += 10
    desk.store.is_away = True
    assert desk.seq("b") > 0
    with pytest.raises(StoreUnavailableError):
        desk.seq("a")


def test_the_list_of_experiments_is_read_for_a_small_share_of_the_time(desk: Desk) -> None:
    def slow() -> tuple[object, ...]:
        desk.clock.now += 1.0
        return FakeStore.experiments(desk.store)

    desk.store.experiments = slow  # type: ignore[method-assign, assignment]
    desk.reader.summaries()
    desk.clock.now += 25
    desk.reader.summaries()
    assert desk.store.calls.count("experiments") == 1
    desk.clock.now += 10
    desk.reader.summaries()
    assert desk.store.calls.count("experiments") == 2


def test_the_list_has_a_new_version_only_when_it_differs(desk: Desk) -> None:
    story = running_story()
    desk.store.add(story)
    desk.reader.summaries()
    first = desk.reader.summaries.version()
    desk.clock.now += 10
    desk.reader.summaries()
    assert desk.reader.summaries.version() == first
    story.pause("no room")
    desk.clock.now += 10
    desk.reader.summaries()
    assert desk.reader.summaries.version() > first


def test_a_worker_that_falls_silent_changes_the_version_of_the_crew(desk: Desk) -> None:
    desk.store.statuses = [status("worker-0")]
    first = desk.reader.workers.version()
    desk.store.statuses = [status("worker-0", silent_s=0.9)]
    desk.clock.now += 10
    assert desk.reader.workers.version() == first
    desk.store.statuses = [status("worker-0", silent_s=40)]
    desk.clock.now += 10
    assert desk.reader.workers.version() != first


def test_what_fails_in_the_background_is_given_up_and_ends_nothing(desk: Desk) -> None:
    def fails() -> bool:
        raise NotFoundError("gone")

    done: list[int] = []

    def works() -> bool:
        done.append(1)
        return len(done) == 3

    desk.reader.background.submit("a", fails)
    desk.reader.background.submit("b", works)
    desk.reader.background.submit("b", lambda: pytest.fail("there is such a job"))
    desk.reader.background.run()
    assert done == [1, 1, 1]


def test_the_state_of_a_log_that_was_never_read_is_not_made_up(desk: Desk) -> None:
    desk.store.add(running_story())
    record = desk.store.records["digits"]
    desk.store.is_away = True
    with pytest.raises(StoreUnavailableError):
        desk.reader.glance(record, ReadModel.fits, patience_s=1.0)


def test_while_a_list_is_waited_for_the_others_are_shown_the_one_before(desk: Desk) -> None:
    desk.store.add(running_story())
    desk.store.statuses = [status("worker-0")]
    summaries, workers = desk.reader.summaries(), desk.reader.workers()
    desk.clock.now += 100
    desk.store.records.clear()
    desk.store.statuses.clear()
    with desk.reader.summaries._asking, desk.reader.workers._asking:
        assert desk.reader.summaries() == summaries
        assert desk.reader.workers() == workers
    assert desk.reader.summaries() == ()


def test_an_old_list_does_not_bring_a_deleted_experiment_back(desk: Desk) -> None:
    old, new = Story("digits", began=NOW - 900), running_story()
    desk.store.add(new)
    assert desk.seq() == len(new.events)
    with pytest.raises(NotFoundError, match="was deleted"):
        desk.reader.glance(old.record, ReadModel.fits, patience_s=1.0)
    desk.store.calls.clear()
    assert desk.seq() == len(new.events)
    assert not desk.store.calls


def test_what_is_read_anew_is_the_callers_alone(desk: Desk) -> None:
    desk.store.add(long_story())
    found = desk.reader.read_anew("long")
    assert found.is_complete
    assert found.state.seq == len(desk.store.logs["long"])
    assert desk.reader.look("long", lambda read_model: read_model) is not found


def test_while_somebody_waits_for_a_store_that_hangs_the_others_are_shown_what_is_known(desk: Desk) -> None:
    desk.store.add(running_story())
    known = desk.seq()
    desk.clock.now += 10
    log = desk.reader._logs["digits"]
    with log.reading:
        assert desk.seq() == known


@pytest.mark.parametrize("error", [KeyError("m99"), MemoryError()])
def test_no_event_is_shown_in_part(desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Where the fold fails in the middle of one, also while the store is away; it is read again if it may be sound."""
    story = running_story()
    desk.store.add(story)

    def fails(*given: object, **named: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("cerebro.state.experiment.commits.commit", fails)
        with pytest.raises((IllegalEventError, MemoryError)):
            desk.seq()
    desk.store.is_away = True
    with pytest.raises(StoreUnavailableError):
        desk.seq()
    desk.store.is_away = False
    desk.clock.now += 60
    if isinstance(error, MemoryError):
        assert desk.seq() == len(desk.store.logs["digits"])
    else:
        with pytest.raises(IllegalEventError, match="KeyError"):
            desk.seq()
