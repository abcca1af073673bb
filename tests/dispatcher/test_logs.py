"""Logs of attempts: newest at the foot, followed by a cursor, searched all at once; bounded, and nothing else read."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from werkzeug.test import TestResponse

from cerebro.contract.events import TaskCommitted
from cerebro.contract.tasks import CheckpointRef, TaskResult
from cerebro.errors import BadRequestError
from cerebro.volumes import Volumes
from dispatcher.children import Said
from dispatcher.log_reading import MOST_LINES, PIECE, LogReader
from dispatcher.views import logs as views
from dispatcher.views.logs import Cursor, LogQuery, Source, growing, sources, unread, waits_for
from tests.dispatcher.fakes import Bench, settings
from tests.dispatcher.stories import Story, running_story

LOGS = "/experiments/digits/logs"
M07 = "fit-1/train/m07/e1/p0"
M05 = "fit-1/train/m05/e1/p0"
COMMIT = TaskCommitted(
    task=M05,
    attempt=1,
    worker="worker-0",
    result=TaskResult(rows=898, checkpoint=CheckpointRef(name="x", checksum="0" * 16, size=1)),
)
"""Of the unit that runs on worker-0."""


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    found = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    found.logs.mkdir()
    return found


@pytest.fixture
def bench(volumes: Volumes) -> Bench:
    bench = Bench(settings=settings(volumes=volumes))
    bench.store.add(running_story())
    return bench


def write(volumes: Volumes, task: str, content: bytes, attempt: int = 1) -> Path:
    path = volumes.task_log("digits", task, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def source(task: str = M05, attempt: int = 1) -> Source:
    return Source(
        task=task,
        attempt=attempt,
        what="",
        model="m05",
        worker="worker-0",
        started=1,
        ended=0,
        outcome="running",
    )


# --- which logs ---------------------------------------------------------------------------------


def test_sources_are_what_started_in_order() -> None:
    """Of all runs; chosen by model, worker, run or unit."""
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
        ("fit-1/train/m06/e1/p0", "waits for a worker to be idle"),
        ("fit-1/train/m07/e1/p1", "m07 is failed"),
        ("fit-1/train/m06/e2/p0", "m06 is in epoch 1; this unit belongs to epoch 2"),
        ("fit-1/train/m05/e1/p1", "m05 is at another unit first: it trains m05, epoch 1, partition 0"),
        (M05, ""),
        ("nonsense", ""),
        ("fit-9/train/m0/e1/p0", ""),
    ],
)
def test_what_a_unit_waits_for(task: str, reason: str) -> None:
    """In words; nothing of one that has started."""
    told = waits_for(running_story().state, task)
    assert (reason in told) if reason else told == ""


# --- reading ------------------------------------------------------------------------------------


def test_end_of_a_large_log(volumes: Volumes) -> None:
    """A gigabyte costs as much as a megabyte: whole lines of its end, and what is left out is told."""
    path = write(volumes, M05, b"")
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 30)
        file.write(b"".join(b"line %06d\n" % number for number in range(50_000)))
    began = time.process_time()
    (chunk,) = LogReader(volumes).newest("digits", [source()])
    assert time.process_time() - began < 1.0
    assert 0 < len(chunk.lines) <= MOST_LINES
    assert chunk.lines[-1].text == "line 049999"
    assert all(line.text.startswith("line ") for line in chunk.lines)
    assert chunk.begin == chunk.lines[0].offset
    assert chunk.end == chunk.size


def test_log_of_one_endless_line(volumes: Volumes) -> None:
    """A progress bar of megabytes is its last state; following it reads little each time."""
    path = write(volumes, M05, b"".join(b"\rstep %07d" % number for number in range(300_000)))
    reader = LogReader(volumes)
    (chunk,) = reader.newest("digits", [source()])
    assert [line.text for line in chunk.lines] == ["step 0299999"]
    assert chunk.lines[0].is_open
    assert path.stat().st_size - chunk.end < 64
    with path.open("ab") as file:
        file.write(b"\rstep 0300000\ndone\n")
    following = reader.since("digits", source(), chunk.end)
    assert [line.text for line in following.lines] == ["step 0300000", "done"]


def test_following_tells_each_line_once(volumes: Volumes) -> None:
    """Whatever the pieces in which it was written; a line that is not ended is told again, whole."""
    path = write(volumes, M05, b"")
    reader, offset, seen = LogReader(volumes), 0, []
    for piece in (b"a\nb", b"c\n", b"", b"d", b"e\nf\n"):
        with path.open("ab") as file:
            file.write(piece)
        chunk = reader.since("digits", source(), offset)
        offset = chunk.end
        seen += [line.text for line in chunk.lines if not line.is_open]
    assert seen == ["a", "bc", "de", "f"]


def test_long_backlog_comes_in_pieces(volumes: Volumes) -> None:
    """Nothing is skipped."""
    write(volumes, M05, b"".join(b"%05d\n" % number for number in range(60_000)))
    reader, offset, seen = LogReader(volumes), 0, []
    for _ in range(200):
        chunk = reader.since("digits", source(), offset)
        assert chunk.end - offset <= PIECE
        seen += [line.text for line in chunk.lines]
        offset = chunk.end
        if chunk.is_end:
            break
    assert seen == [f"{number:05}" for number in range(60_000)]


def test_line_in_its_context(volumes: Volumes) -> None:
    """What was before it and what came after."""
    content = b"".join(b"%06d\n" % number for number in range(20_000))
    write(volumes, M05, content)
    chunk = LogReader(volumes).around("digits", source(), content.index(b"010000"))
    texts = [line.text for line in chunk.lines]
    assert "010000" in texts
    assert 100 < texts.index("010000") < len(texts) - 1


def test_links_and_absent_logs_are_nothing(volumes: Volumes) -> None:
    """User code writes to this volume: what it links is not shown."""
    path = write(volumes, M05, b"")
    path.unlink()
    reader = LogReader(volumes)
    assert reader.newest("digits", [source()])[0].size is None
    path.symlink_to("/etc/passwd")
    assert reader.newest("digits", [source()])[0].lines == ()
    assert reader.size("digits", source()) is None
    assert reader.search("digits", [source()], LogQuery(q="root")).hits == ()


# --- search -------------------------------------------------------------------------------------


def test_search_over_all_logs(volumes: Volumes) -> None:
    """Newest log first; text is found in any case, colours and overwritten parts are no text."""
    write(volumes, M05, b"first\nLoss 0.1\rLOSS 0.2 <b>\n\x1b[31mred loss\x1b[0m\n")
    write(volumes, M07, b"loss of m07\nno\n")
    hits = LogReader(volumes).search("digits", [source(M07), source(M05)], LogQuery(q="loss")).hits
    assert [(hit.source.task, hit.before, hit.hit, hit.after) for hit in hits] == [
        (M05, "", "LOSS", " 0.2 <b>"), (M05, "red ", "loss", ""), (M07, "", "loss", " of m07"),
    ]  # fmt: skip
    assert hits[0].offset == 6


def test_search_by_level_and_expression(volumes: Volumes) -> None:
    """Both together."""
    write(volumes, M05, b"ERROR m1\nINFO m1\nERROR x\nTraceback (most recent call last):\n  File m12\n")
    query = LogQuery(q=r"m\d+", regex=True, level="error")
    assert [hit.hit for hit in LogReader(volumes).search("digits", [source()], query).hits] == ["m1", "m12"]
    assert len(LogReader(volumes).search("digits", [source()], LogQuery(level="error")).hits) == 4


def test_expression_that_never_ends_is_ended(volumes: Volumes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found before counts, and the page says that it is not all."""
    monkeypatch.setattr("dispatcher.log_reading.SEARCH_S", 2.0)
    write(volumes, M05, b"aaab\n" + b"a" * 4000 + b"c\n")
    began = time.monotonic()
    found = LogReader(volumes).search("digits", [source()], LogQuery(q=r"(a+)+b", regex=True))
    assert time.monotonic() - began < 20.0
    assert [hit.hit for hit in found.hits] == ["aaab"]
    assert "was ended after 2 s" in found.note


def test_wrong_expression_is_explained(volumes: Volumes) -> None:
    """With what Python says of it."""
    with pytest.raises(BadRequestError, match="is no regular expression: unterminated"):
        LogReader(volumes).search("digits", [source()], LogQuery(q="[", regex=True))


@pytest.mark.parametrize("q", ["a{99999999999999999999}", "(?P<a>x)(?P<a>y)", "a**"])
def test_expression_that_python_does_not_take_is_no_fault_of_the_page(volumes: Volumes, q: str) -> None:
    """Whatever Python raises about it."""
    with pytest.raises(BadRequestError, match="is no regular expression"):
        LogReader(volumes).search("digits", [source()], LogQuery(q=q, regex=True))


def test_search_that_fails_is_not_called_slow(volumes: Volumes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ended by itself had no lack of time; the code is kept for whoever looks after the cluster."""
    write(volumes, M05, b"x\n")
    reader = LogReader(volumes)
    for said, note in (
        (Said(output=b"", code=1), "The search failed"),
        (Said(output=b"", code=-signal.SIGKILL, is_late=True), "was ended after 6 s"),
        (Said(output=b"", code=-signal.SIGXCPU), "was ended after 6 s"),
        (Said(output=b"", code=-signal.SIGKILL, is_cut=True), "Only the newest"),
        (Said(output=b'"done"\n', code=0), ""),
    ):
        monkeypatch.setattr("dispatcher.children.Children.ask", lambda *_, said=said, **__: said)
        told = reader.search("digits", [source()], LogQuery(q="x")).note
        assert (note in told) if note else told == ""


def test_too_many_hits_are_cut_and_told(volumes: Volumes) -> None:
    """The first 500 of the newest log."""
    write(volumes, M05, b"x\n" * 2000)
    found = LogReader(volumes).search("digits", [source()], LogQuery(q="x"))
    assert len(found.hits) == 500
    assert "Only the newest 500 hits" in found.note


# --- cursors ------------------------------------------------------------------------------------


def test_cursor_of_runs_that_go_on() -> None:
    """Logs that may grow are read on, new ones from their beginning, ended ones no more; also of those that started at
    the same moment."""
    state, query = running_story().state, LogQuery()
    chosen = sources(state, query)
    cursor = Cursor.parse(str(Cursor.behind(chosen, {each.key: 7 for each in chosen})))
    assert cursor is not None
    pending = unread(state, query, cursor)
    assert {(each.task, offset) for each, offset in pending} == {("fit-1/train/m04/e1/p1", 7), (M05, 7)}
    assert [each.task for each in growing(state, query)] == ["fit-1/train/m04/e1/p1", M05]
    assert [each.task for each in growing(state, LogQuery(worker="worker-0"))] == [M05]
    elsewhere = Cursor(time=cursor.time, offsets={})
    assert unread(state, query, elsewhere) == [(chosen[-1], 0)]
    every = unread(state, query, Cursor(offsets={}))
    assert [each for each, _ in every] == list(chosen)


def test_follower_reads_a_part_at_a_time() -> None:
    """What was not read waits for the next time, what has waited longest first; what has ended is read to its end."""
    state, query = running_story().state, LogQuery()
    cursor, seen = Cursor(offsets={}), []
    for _ in range(20):
        pending = unread(state, query, cursor)
        read = pending[:2]
        seen += [(each.key, offset) for each, offset in read]
        # The first answer of each log has half of it.
        ends = {each.key: (10, True) if offset else (5, False) for each, offset in read}
        cursor = Cursor.parse(str(cursor.moved(pending, ends))) or cursor
    chosen = [each.key for each in sources(state, query)]
    ended = chosen[:-2]
    assert [key for key, offset in seen if offset == 0] == chosen
    assert [seen.count((key, 5)) for key in ended] == [1] * len(ended)
    assert not any((key, 10) in seen for key in ended)
    assert set(cursor.offsets) == set(chosen[-2:])


@pytest.mark.parametrize("text", [
    "", "1", "[]", "{}", "[1]", '[1,{"a":"b"}]', "[null,{}]", "[1,[]]", "\x00",
    '[0,{"x":Infinity}]', '[NaN,{}]', '[Infinity,{}]', '[0,{"x":-1}]', '[0,{"x":1e400}]', "[" * 30_000, "[[0,{}]]",
    '[0,{"x":' + "9" * 5_000 + "}]",
])  # fmt: skip
def test_cursor_that_is_none(text: str) -> None:
    """Is refused, not believed."""
    assert Cursor.parse(text) is None


def test_only_what_is_shown_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has tens of thousands of attempts: a follower costs what is new to him, a list its page."""
    made: list[object] = []

    def source(*given: object) -> Source:
        made.append(given)
        return make(*given)  # type: ignore[arg-type]

    make = views._source
    monkeypatch.setattr(views, "_source", source)
    state, query = running_story().state, LogQuery()
    chosen = sources(state, query)
    assert (len(chosen), made) == (15, [])
    assert len(list(chosen[-3:])) == len(made) == 3
    made.clear()
    assert len(growing(state, query)) == 2
    assert made == []
    cursor = Cursor.behind(chosen, {})
    made.clear()
    unread(state, query, cursor)
    assert len(made) == 1


# --- the page -----------------------------------------------------------------------------------


def test_page_shows_what_was_printed(bench: Bench, volumes: Volumes) -> None:
    """Escaped, with colours as classes; and each log can be had whole."""
    write(volumes, M07, b"\x1b[32m<script>alert(1)</script>\x1b[0m\nValueError: shapes differ\n")
    page = bench.signed_in().get(LOGS).text
    assert "<script>alert" not in page
    assert '<span class="ansi-32">&lt;script&gt;alert(1)&lt;/script&gt;</span>' in page
    assert '<li class="level-error"' in page
    whole = bench.signed_in().get(f"{LOGS}/file?task={M07}&attempt=1")
    assert whole.data.startswith(b"\x1b[32m<script>")
    assert whole.headers["Content-Disposition"].startswith("attachment")
    assert whole.mimetype == "application/octet-stream"


def test_page_follows(bench: Bench, volumes: Volumes) -> None:
    """From the cursor on the page: nothing new is 204; new lines and new units come, and the next cursor."""
    path = write(volumes, M05, b"one\n")
    browser = bench.signed_in()
    page = browser.get(LOGS).text
    cursor = page.split('data-cursor="')[1].split('"')[0].replace("&#34;", '"')

    def ask(after: str) -> tuple[int, str, str]:
        answer = browser.client.get(
            f"{LOGS}/lines", query_string={"after": after}, base_url="http://127.0.0.1:7080"
        )
        return answer.status_code, answer.text, answer.headers.get("X-Cursor", "")

    assert ask(cursor)[0] == 204
    with path.open("ab") as file:
        file.write(b"two\n")
    status, html, cursor = ask(cursor)
    assert (status, "two" in html, "one" in html) == (200, True, False)
    story = Story("digits", began=0)
    story.events = bench.store.logs["digits"]
    for event in story.events:
        story.state.apply(event)
    story.time = bench.clock.now
    story.tell(COMMIT)
    story.run_task("fit-1/train/m06/e1/p0", "worker-0", None)
    bench.monotonic.now += 5
    write(volumes, "fit-1/train/m06/e1/p0", b"fresh\n")
    status, html, cursor = ask(cursor)
    assert (status, "fresh" in html) == (200, True)
    assert ask(cursor)[0] == 204
    assert ask("nonsense")[0] == 400


def test_list_of_logs_tells_their_sizes_as_they_grow(bench: Bench, volumes: Volumes) -> None:
    """The log of events has no word of it; while nothing grows, nothing is built."""
    path = write(volumes, M05, b"one\n")
    browser = bench.signed_in()

    def ask(tag: str) -> TestResponse:
        headers = {"If-None-Match": tag}
        return browser.client.get(f"/fragments{LOGS}", headers=headers, base_url="http://127.0.0.1:7080")

    first = ask("")
    assert "4 B" in first.text
    assert ask(first.headers["ETag"]).status_code == 304
    path.write_bytes(b"one and two\n")
    again = ask(first.headers["ETag"])
    assert again.status_code == 200
    assert "12 B" in again.text


def test_page_says_what_is_the_matter(bench: Bench, volumes: Volumes) -> None:
    """A unit that waits, an expression that is none, a search without hits, a volume that is not there."""
    browser = bench.signed_in()
    assert "waits for a worker to be idle" in browser.get(f"{LOGS}?task=fit-1/train/m06/e1/p0").text
    assert "is no regular expression" in browser.get(f"{LOGS}?q=[&regex=1").text
    assert "Nothing matches" in browser.get(f"{LOGS}?q=nowhere").text
    volumes.logs.rmdir()
    assert "not mounted" in browser.get(LOGS).text


@pytest.mark.parametrize(
    "query", ["task=", "task=fit-1/train/m06/e1/p0", "task=../../x", "attempt=9&task=" + M05]
)
def test_log_that_is_none_is_not_found(bench: Bench, query: str) -> None:
    """Whatever the address says."""
    assert bench.signed_in().get(f"{LOGS}/file?{query}").status_code == 404


def test_search_finds_what_older_runs_printed(bench: Bench, volumes: Volumes) -> None:
    """However many runs came after; the first view shows the newest log with output, and a run can be chosen."""
    etl = "etl-1/etl/train/p0"
    write(volumes, etl, b"ValueError: row 7\n")
    browser = bench.signed_in()
    assert "1 line in" in browser.get(f"{LOGS}?q=ValueError").text
    first = browser.get(LOGS).text
    assert "ValueError: row 7" in first
    assert '<option value="">all runs</option>' in first
    assert "0 lines in" in browser.get(f"{LOGS}?q=ValueError&fit=fit-1").text
