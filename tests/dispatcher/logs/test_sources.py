"""Lists attempts with a log in order, and says why a sub-epoch has no log yet."""

from __future__ import annotations

import pytest

from dispatcher.logs import view as views
from dispatcher.logs.view import Cursor, LogQuery, Source, growing, sources, unread, waiting_reason
from tests.dispatcher.logs.printed import M05, M07
from tests.dispatcher.stories import running_story


def test_sources_are_started_attempts_in_order() -> None:
    """Over all runs; filtered by model, worker, run or sub-epoch."""
    state = running_story().state
    assert {each.task.partition("/")[0] for each in sources(state, LogQuery())} == {"etl-1", "fit-1"}
    found = sources(state, LogQuery(fit="fit-1"))
    assert [each.task for each in found][-3:] == [M07, "fit-1/train/m04/e1/p1", M05]
    assert len(found) == 13
    assert [each.started for each in found] == sorted(each.started for each in found)
    assert {each.worker for each in sources(state, LogQuery(worker="worker-1"))} == {"worker-1"}
    assert {each.model for each in sources(state, LogQuery(model="m00"))} == {"m00"}
    assert {each.task.partition("/")[0] for each in sources(state, LogQuery(fit="etl-1"))} == {"etl-1"}
    assert [each.key for each in sources(state, LogQuery(task=M05))] == [f"{M05}.a1"]
    assert not sources(state, LogQuery(task="fit-9/train/m0/e1/p0"))
    assert not sources(state, LogQuery(task="../../etc/passwd"))


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("fit-1/train/m06/e1/p0", "waits for an idle worker"),
        ("fit-1/train/m07/e1/p1", "m07 is failed"),
        ("fit-1/train/m06/e2/p0", "m06 is in epoch 1; this sub-epoch is part of epoch 2"),
        ("fit-1/train/m05/e1/p1", "m05 runs another sub-epoch first: it trains m05, epoch 1, partition 0"),
        (M05, ""),
        ("nonsense", ""),
        ("fit-9/train/m0/e1/p0", ""),
    ],
)
def test_waiting_sub_epochs_have_a_reason(task: str, reason: str) -> None:
    """A started sub-epoch needs no reason."""
    wait_reason = waiting_reason(running_story().state, task)
    assert (reason in wait_reason) if reason else wait_reason == ""


def test_only_shown_sources_are_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has tens of thousands of attempts. A follower pays for new ones only, a list for one page."""
    created: list[object] = []

    def source(*given: object) -> Source:
        created.append(given)
        return make(*given)  # type: ignore[arg-type]

    make = views._source
    monkeypatch.setattr(views, "_source", source)
    state, query = running_story().state, LogQuery()
    chosen = sources(state, query)
    assert (len(chosen), created) == (15, [])
    assert len(list(chosen[-3:])) == len(created) == 3
    created.clear()
    assert len(growing(state, query)) == 2
    assert created == []
    cursor = Cursor.from_page(chosen, {})
    created.clear()
    unread(state, query, cursor)
    assert len(created) == 1
