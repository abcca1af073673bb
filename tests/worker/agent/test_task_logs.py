"""Task logs keep their beginning and end, without delay for the writer."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.events import TaskCommitted
from cerebro.worker.upkeep.task_logs import TaskLogs, _Line, fold, shorten
from tests.worker.agent.agents import Agents, until

LIMIT = 4000


def lines(first: int, last: int) -> bytes:
    """Return numbered lines."""
    return b"".join(b"line %06d\n" % number for number in range(first, last))


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_a_long_log_keeps_its_beginning_and_end(before: int, after: int) -> None:
    """Whole lines are kept, with a note about the missing size between them; later output follows.

    Short logs are unchanged.
    """
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"cerebro-test-{os.getpid()}.log"
    try:
        with path.open("ab", buffering=0) as printing:
            printing.write(lines(0, before))
            size = path.stat().st_size
            left_out = shorten(path, LIMIT)
            printing.write(lines(before, before + after))
        found = path.read_bytes().splitlines()
    finally:
        path.unlink()
    if size <= LIMIT:
        assert (left_out, found) == (0, lines(0, before + after).splitlines())
        return
    (mark,) = (number for number, line in enumerate(found) if line.startswith(b"[..."))
    assert b"%s bytes are left out" % f"{left_out:,}".encode() in found[mark]
    whole = lines(0, before + after).splitlines()
    assert whole[:mark] == found[:mark]
    assert whole[len(whole) - (len(found) - mark - 1) :] == found[mark + 1 :]
    assert mark > 80
    assert len(found) - mark - 1 - after > 80
    assert left_out == (len(whole) - len(found) + 1) * 12


def folded_line(content: bytes) -> bytes:
    line = _Line()
    line.add(content)
    return line.shown()


@given(st.lists(st.text("ab\r\n█", max_size=8), max_size=20))
def test_a_folded_log_has_all_lines_as_a_terminal_shows_them(printed: list[str]) -> None:
    """Lines without a carriage return stay byte for byte."""
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"cerebro-test-fold-{os.getpid()}.log"
    try:
        path.write_bytes(content := "".join(printed).encode())
        fold(path)
        lines_of = content.split(b"\n")
        assert path.read_bytes().split(b"\n") == [folded_line(line) for line in lines_of]
        fold(path)
        assert path.read_bytes().split(b"\n") == [folded_line(line) for line in lines_of]
    finally:
        path.unlink()


@given(st.lists(st.text("ab\r█", max_size=8), max_size=20), st.integers(1, 5))
def test_a_line_read_in_pieces_is_the_same_line(printed: list[str], size: int) -> None:
    """Pieces may split a character."""
    content = "".join(printed).encode()
    line = _Line()
    for start in range(0, len(content), size):
        line.add(content[start : start + size])
    assert line.shown() == folded_line(content)


@pytest.mark.parametrize("piece", [b"\r%01000d" % 7, b"x" * 1000], ids=["states", "one state"])
def test_a_line_without_an_end_needs_little_memory(piece: bytes, tmp_path: Path) -> None:
    """Covers 8 MiB of carriage returns, and of a single line."""
    path, size = tmp_path / "log", 1 << 23
    path.write_bytes(piece * (size // len(piece)))
    size = path.stat().st_size
    tracemalloc.start()
    try:
        fold(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20
    shown = b"%01000d" % 7
    if piece.startswith(b"x"):
        shown = b"x" * 30_000 + f" [... {size - 60_000:,} bytes of this line are left out ...] ".encode()
        shown += b"x" * 30_000
    assert path.read_bytes() == shown


def test_the_log_of_an_ended_attempt_is_folded(tmp_path: Path) -> None:
    """A progress bar with a hundred thousand states becomes one line."""
    logs, path = TaskLogs(LIMIT), tmp_path / "log"
    states = b"".join(b"\r%5d of 100000" % number for number in range(0, 100_001, 100))
    logs.begin([path])
    path.write_bytes(b"first\n" + states[:3000])
    logs.keep_short()
    with path.open("ab") as printing:
        printing.write(states[3000:] + b"\nlast\n")
    logs.end([path])
    logs.keep_short()
    assert path.read_bytes() == b"first\n100000 of 100000\nlast\n"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """User code may have created it."""
    (tmp_path / "other").write_bytes(lines(0, 3000))
    (tmp_path / "log").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic"):
        shorten(tmp_path / "log", LIMIT)


def test_a_sub_epoch_that_prints_without_end_fills_no_disk(agents: Agents) -> None:
    """Its log has the first and last line, and it is committed."""
    agents.start(CEREBRO_TASK_LOG_MIB="1", lease_s=1.0)
    key = agents.give(1, "prints")
    pid = agents.begun(1)
    path = next((agents.log_folder).glob("*p1.a1.log"))
    until(lambda: "are left out here" in path.read_text(errors="replace"), f"the log of {pid} is cut")
    agents.gate(1).touch()
    assert isinstance(agents.end_of(key), TaskCommitted)
    found = agents.log(1).splitlines()
    assert found[0] == "prints attempt 1"
    assert found[-1] == "the last line"
