"""The cached reader of the store: few reads, bounded, and without deleted experiments."""

from __future__ import annotations

from collections import Counter

import pytest

from cerebro.contract.events import LivePoint
from cerebro.errors import IllegalEventError, NotFoundError, StoreUnavailableError
from dispatcher.read_models import reader as reading
from dispatcher.read_models.reader import FRESH_S, Reader
from tests.dispatcher.fakes import Clock, FakeStore
from tests.dispatcher.stories import NOW, Story, running_story, status


class ReaderBench:
    """A reader over a store in memory, with a manual clock."""

    def __init__(self) -> None:
        self.store, self.clock = FakeStore(), Clock()
        self.reader = Reader(self.store, clock=self.clock, monotonic=self.clock)

    def seq(self, name: str = "digits", timeout_s: float = 2.0) -> int:
        return self.reader.read(name, lambda read_model: read_model.state.seq, timeout_s=timeout_s)


@pytest.fixture
def bench() -> ReaderBench:
    return ReaderBench()


def long_story(models: int = 500) -> Story:
    """A log longer than one read."""
    story = Story("long")
    story.workers_join()
    story.etl()
    story.fit(models=models, epochs=1)
    for model in range(models):
        story.train(f"m{model:02}", 1)
    return story


def test_an_experiment_is_read_at_most_every_half_second(bench: ReaderBench) -> None:
    bench.store.add(running_story())
    for _ in range(50):
        bench.seq()
        bench.reader.version("digits")
    assert Counter(bench.store.calls) == {"experiment": 1, "events": 1, "live": 1}
    bench.clock.now += FRESH_S
    bench.seq()
    assert Counter(bench.store.calls) == {"experiment": 1, "events": 2, "live": 2}


def test_the_version_changes_with_the_log_with_live_points_and_with_an_outage(bench: ReaderBench) -> None:
    story = running_story()
    bench.store.add(story)
    versions = [bench.reader.version("digits")]
    bench.clock.now += 1
    assert bench.reader.version("digits") == versions[0]
    story.pause("no room")
    bench.clock.now += 1
    versions.append(bench.reader.version("digits"))
    bench.store.points["digits"] = [LivePoint(seq=1, task="fit-1/train/m05/e1/p0", attempt=1, rows=5)]
    bench.clock.now += 1
    versions.append(bench.reader.version("digits"))
    bench.store.is_away = True
    bench.clock.now += 1
    versions.append(bench.reader.version("digits"))
    assert len(set(versions)) == 4


def test_a_long_log_is_read_in_the_background_and_marked_incomplete(bench: ReaderBench) -> None:
    bench.store.add(long_story())
    is_complete = bench.reader.read("long", lambda read_model: read_model.is_complete, timeout_s=-1.0)
    assert not is_complete
    first = bench.seq("long", timeout_s=0.0)
    assert first == 1000
    bench.reader.background.run()
    assert bench.reader.read("long", lambda read_model: read_model.is_complete)
    assert bench.seq("long") == len(bench.store.logs["long"])


def test_a_log_being_read_in_the_background_is_not_read_twice(bench: ReaderBench) -> None:
    bench.store.add(long_story())
    bench.seq("long", timeout_s=-1.0)
    before = Counter(bench.store.calls)["events"]
    for _ in range(5):
        bench.seq("long", timeout_s=0.0)
    assert Counter(bench.store.calls)["events"] == before


def test_a_reused_name_shows_the_new_experiment(bench: ReaderBench) -> None:
    bench.store.add(running_story())
    assert bench.seq() > 0
    bench.store.add(Story("digits", began=NOW - 10))
    bench.clock.now += 10
    assert bench.seq() == 0


def test_a_deleted_experiment_is_not_found_any_more(bench: ReaderBench) -> None:
    bench.store.add(running_story())
    bench.seq()
    del bench.store.records["digits"], bench.store.logs["digits"]
    bench.clock.now += 10
    with pytest.raises(NotFoundError):
        bench.seq()
    with pytest.raises(NotFoundError):
        bench.reader.version("digits")


def test_the_least_recently_viewed_events_are_evicted(
    bench: ReaderBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = [running_story(name) for name in ("a", "b", "c")]
    monkeypatch.setattr(reading, "_MAX_EVENTS", 2 * len(stories[0].events) + 1)
    for story in stories:
        bench.store.add(story)
        bench.seq(story.record.name)
        bench.clock.now += 10
    bench.store.is_away = True
    assert bench.seq("c") > 0
    assert bench.seq("b") > 0
    with pytest.raises(StoreUnavailableError):
        bench.seq("a")


def test_live_points_count_toward_the_cache_limit(
    bench: ReaderBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = [running_story(name) for name in ("a", "b")]
    monkeypatch.setattr(reading, "_MAX_EVENTS", 2 * len(stories[0].events) + 10)
    for story in stories:
        name = story.record.name
        bench.store.add(story)
        bench.store.points[name] = [
            LivePoint(
                seq=n, time=NOW + n, task="fit-1/train/m05/e1/p0", attempt=1, rows=n, values={"loss": 1.0 / n}
            )
            for n in range(1, 101)
        ]
        bench.seq(name)
        bench.clock.now += 10
    bench.store.is_away = True
    assert bench.seq("b") > 0
    with pytest.raises(StoreUnavailableError):
        bench.seq("a")


def test_the_list_of_experiments_is_read_for_a_small_share_of_the_time(bench: ReaderBench) -> None:
    def slow() -> tuple[object, ...]:
        bench.clock.now += 1.0
        return FakeStore.experiments(bench.store)

    bench.store.experiments = slow  # type: ignore[method-assign, assignment]
    bench.reader.summaries()
    bench.clock.now += 25
    bench.reader.summaries()
    assert bench.store.calls.count("experiments") == 1
    bench.clock.now += 10
    bench.reader.summaries()
    assert bench.store.calls.count("experiments") == 2


def test_a_failed_background_job_does_not_stop_the_others(bench: ReaderBench) -> None:
    def fails() -> bool:
        raise NotFoundError("gone")

    done: list[int] = []

    def works() -> bool:
        done.append(1)
        return len(done) == 3

    bench.reader.background.submit("a", fails)
    bench.reader.background.submit("b", works)
    bench.reader.background.submit("b", lambda: pytest.fail("there is such a job"))
    bench.reader.background.run()
    assert done == [1, 1, 1]


def test_other_viewers_get_the_previous_list_during_a_read(bench: ReaderBench) -> None:
    bench.store.add(running_story())
    bench.store.statuses = [status("worker-0")]
    summaries, workers = bench.reader.summaries(), bench.reader.workers()
    bench.clock.now += 100
    bench.store.records.clear()
    bench.store.statuses.clear()
    with bench.reader.summaries._calling, bench.reader.workers._calling:
        assert bench.reader.summaries() == summaries
        assert bench.reader.workers() == workers
    assert bench.reader.summaries() == ()


def test_other_viewers_get_known_data_while_the_store_hangs(
    bench: ReaderBench,
) -> None:
    bench.store.add(running_story())
    known = bench.seq()
    bench.clock.now += 10
    log = bench.reader._logs["digits"]
    with log.reading:
        assert bench.seq() == known


@pytest.mark.parametrize("error", [KeyError("m99"), MemoryError()])
def test_no_event_is_shown_in_part(
    bench: ReaderBench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A state from a half-applied event is dropped. The log is read again after a lack of memory."""
    story = running_story()
    bench.store.add(story)

    def fails(*given: object, **named: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("cerebro.state.tasks.attempt_events.commit_events.commit", fails)
        with pytest.raises((IllegalEventError, MemoryError)):
            bench.seq()
    bench.store.is_away = True
    with pytest.raises(StoreUnavailableError):
        bench.seq()
    bench.store.is_away = False
    bench.clock.now += 60
    if isinstance(error, MemoryError):
        assert bench.seq() == len(bench.store.logs["digits"])
    else:
        with pytest.raises(IllegalEventError, match="KeyError"):
            bench.seq()
