"""Terminal output becomes safe HTML."""

from __future__ import annotations

import pytest

from dispatcher.logs.terminal import level_of, lines, plain


def shown(content: bytes, *, is_end: bool = True) -> list[str]:
    return [line.text for line in lines(content, 0, is_end=is_end)]


@pytest.mark.parametrize(
    ("raw", "text", "times"),
    [
        (b"\r10%\r50%\r100%\n", "100%", 2),
        (b"10%\r50%", "50%", 1),
        (b"done\r\n", "done", 0),
        (b"50%\r   \n", "50%", 0),
        (b"\r\r\r\n", "", 0),
    ],
)
def test_a_progress_bar_becomes_its_last_line(raw: bytes, text: str, times: int) -> None:
    """The page shows the number of overwritten states."""
    (line,) = lines(raw, 0, is_end=True)
    assert (line.text, line.overwritten) == (text, times)


def test_colours_become_classes() -> None:
    """A colour lasts over lines until it is reset; text is escaped."""
    found = lines(b"\x1b[1;31mred <b>\nstill\x1b[0m plain\x1b[92mgreen", 0, is_end=True)
    assert [(part.text, part.classes) for line in found for part in line.parts] == [
        ("red <b>", "ansi-1 ansi-31"), ("still", "ansi-1 ansi-31"), (" plain", ""), ("green", "ansi-32"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "sequence",
    [
        "\x1b[38;5;208m", "\x1b[38;2;1;2;3m", "\x1b[48;5;1m", "\x1b[2K", "\x1b[1A", "\x1b[?25l", "\x1b]0;title\x07",
        "\x1b]8;;http://evil.example\x1b\\", "\x1b(B", "\x1b", "\x07", "\x00", "\x1b[99999999999m", "\x1b[;;m",
    ],
)  # fmt: skip
def test_other_escape_sequences_are_removed(sequence: str) -> None:
    """The text around them is kept."""
    assert shown(f"a{sequence}b".encode()) == ["ab"]
    assert "\x1b" not in plain(f"a{sequence}b".encode())


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("ERROR something", "error"), ("2026-01-01 10:00 CRITICAL x", "error"), ('{"level": "WARNING"}', "warning"),
        ("Traceback (most recent call last):", "error"), ("ValueError: shapes differ", "error"),
        ("torch.cuda.OutOfMemoryError: x", "error"), ("x.py:1: UserWarning: slow", "warning"), ("[INFO] go", "info"),
        ("DEBUG x", "debug"), ("no errors so far", ""), ("the terror of it", ""), ("", ""),
    ],
)  # fmt: skip
def test_the_level_of_a_line_is_recognised(text: str, level: str) -> None:
    """Recognised by the level names of logging and of Python."""
    assert level_of(text) == level
