"""A follower's cursor continues growing logs, finishes ended ones, and is validated."""

from __future__ import annotations

import pytest

from dispatcher.logs.view import Cursor, LogQuery, growing, sources, unread
from tests.dispatcher.logs.printed import M05
from tests.dispatcher.stories import running_story


def test_a_cursor_follows_open_runs() -> None:
    """New logs are read from their start and ended logs no longer, also with equal start times."""
    state, query = running_story().state, LogQuery()
    chosen = sources(state, query)
    cursor = Cursor.parse(str(Cursor.from_page(chosen, {each.key: 7 for each in chosen})))
    assert cursor is not None
    pending = unread(state, query, cursor)
    assert {(each.task, offset) for each, offset in pending} == {("fit-1/train/m04/e1/p1", 7), (M05, 7)}
    assert [each.task for each in growing(state, query)] == ["fit-1/train/m04/e1/p1", M05]
    assert [each.task for each in growing(state, LogQuery(worker="worker-0"))] == [M05]
    elsewhere = Cursor(time=cursor.time, offsets={})
    assert unread(state, query, elsewhere) == [(chosen[-1], 0)]
    every = unread(state, query, Cursor(offsets={}))
    assert [each for each, _ in every] == list(chosen)


def test_a_follower_reads_in_parts() -> None:
    """The longest-waiting log is read first; ended logs are read completely."""
    state, query = running_story().state, LogQuery()
    cursor, observed = Cursor(offsets={}), []
    for _ in range(20):
        pending = unread(state, query, cursor)
        read = pending[:2]
        observed += [(each.key, offset) for each, offset in read]
        # The first answer contains half of each log.
        ends = {each.key: (10, True) if offset else (5, False) for each, offset in read}
        cursor = Cursor.parse(str(cursor.advanced(pending, ends))) or cursor
    chosen = [each.key for each in sources(state, query)]
    ended = chosen[:-2]
    assert [key for key, offset in observed if offset == 0] == chosen
    assert [observed.count((key, 5)) for key in ended] == [1] * len(ended)
    assert not any((key, 10) in observed for key in ended)
    assert set(cursor.offsets) == set(chosen[-2:])


@pytest.mark.parametrize("text", [
    "", "1", "[]", "{}", "[1]", '[1,{"a":"b"}]', "[null,{}]", "[1,[]]", "\x00",
    '[0,{"x":Infinity}]', '[NaN,{}]', '[Infinity,{}]', '[0,{"x":-1}]', '[0,{"x":1e400}]', "[" * 30_000, "[[0,{}]]",
    '[0,{"x":' + "9" * 5_000 + "}]",
])  # fmt: skip
def test_an_invalid_cursor_is_refused(text: str) -> None:
    """An invalid cursor is refused."""
    assert Cursor.parse(text) is None
