"""Logs are read from the end or an offset, as whole lines in bounded pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.runtime.volumes import Volumes
from dispatcher.logs import terminal
from dispatcher.logs.log_reader import MAX_LINES, PIECE, LogReader, _begin_of_last
from dispatcher.logs.view import LogQuery
from tests.dispatcher.logs.printed import M05, source, write


def test_end_of_a_large_log(volumes: Volumes) -> None:
    """The reader reads only the last lines and reports their offsets."""
    path = write(volumes, M05, b"")
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 40)
        file.write(b"".join(b"line %06d\n" % number for number in range(50_000)))
    (chunk,) = LogReader(volumes).newest("digits", [source()])
    assert 0 < len(chunk.lines) <= MAX_LINES
    assert chunk.lines[-1].text == "line 049999"
    assert all(line.text.startswith("line ") for line in chunk.lines)
    assert chunk.begin == chunk.lines[0].offset
    assert chunk.end == chunk.size


def test_log_of_one_endless_line(volumes: Volumes) -> None:
    """A progress bar of several MB shows its last state; following it reads little each time."""
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


def test_following_returns_each_line_once(volumes: Volumes) -> None:
    """Independent of how the output was split into writes. An incomplete line is sent again once complete."""
    path = write(volumes, M05, b"")
    reader, offset, observed = LogReader(volumes), 0, []
    for piece in (b"a\nb", b"c\n", b"", b"d", b"e\nf\n"):
        with path.open("ab") as file:
            file.write(piece)
        chunk = reader.since("digits", source(), offset)
        offset = chunk.end
        observed += [line.text for line in chunk.lines if not line.is_open]
    assert observed == ["a", "bc", "de", "f"]


def test_a_shortened_log_is_read_again(volumes: Volumes) -> None:
    """The file became shorter, so the follower reads it again from the start."""
    path = write(volumes, M05, b"line\n" * 1000)
    reader = LogReader(volumes)
    (chunk,) = reader.newest("digits", [source()])
    path.write_bytes(b"first\n[... left out ...]\nlast\n")
    following = reader.since("digits", source(), chunk.end)
    assert [line.text for line in following.lines] == ["first", "[... left out ...]", "last"]
    assert reader.since("digits", source(), following.end).lines == ()


def test_a_long_backlog_is_returned_in_pieces(volumes: Volumes) -> None:
    write(volumes, M05, b"".join(b"%05d\n" % number for number in range(60_000)))
    reader, offset, observed = LogReader(volumes), 0, []
    for _ in range(200):
        chunk = reader.since("digits", source(), offset)
        assert chunk.end - offset <= PIECE
        observed += [line.text for line in chunk.lines]
        offset = chunk.end
        if chunk.is_end:
            break
    assert observed == [f"{number:05}" for number in range(60_000)]


def test_a_line_is_returned_with_its_context(volumes: Volumes) -> None:
    """The lines before and after it."""
    content = b"".join(b"%06d\n" % number for number in range(20_000))
    write(volumes, M05, content)
    chunk = LogReader(volumes).around("digits", source(), content.index(b"010000"))
    texts = [line.text for line in chunk.lines]
    assert "010000" in texts
    assert 100 < texts.index("010000") < len(texts) - 1


@pytest.mark.processes
def test_links_and_missing_logs_are_ignored(volumes: Volumes) -> None:
    """User code writes to this volume, so links are not followed."""
    path = write(volumes, M05, b"")
    path.unlink()
    reader = LogReader(volumes)
    assert reader.newest("digits", [source()])[0].size is None
    path.symlink_to("/etc/passwd")
    assert reader.newest("digits", [source()])[0].lines == ()
    assert reader.size("digits", source()) is None
    assert reader.search("digits", [source()], LogQuery(q="root")).hits == ()


@given(st.binary(max_size=40).map(lambda content: content.replace(b"a", b"\n")), st.integers(1, 6))
def test_the_last_lines_come_from_the_ends_of_all_logs(content: bytes, most: int) -> None:
    """Only the end of the files is read."""
    begin = _begin_of_last(content, most)
    assert list(terminal.split(content[begin:])) == list(terminal.split(content))[-most:]
