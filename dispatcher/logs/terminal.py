"""Conversion of terminal output to lines: collapse progress bars, map colours to CSS classes. Pure.

`log_reader` converts lines to show, `search` lines to match. Of the control sequences (ECMA-48) only "select graphic
rendition" is interpreted; the others are removed. A shown line has at most 8,000 characters. This module produces no
HTML: templates escape the text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_LINE_LENGTH = 8_000
"""Maximum characters of a line to show. The download is complete."""

_ESCAPE = re.compile(
    r"\x1b\[([0-9;:]*)m"  # colours
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # window titles, links
    r"|\x1b[()*+][ -~]"  # character sets
    r"|\x1b[@-Z\\-_]?"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_LEVEL = re.compile(
    r"(?P<error>\b(?:CRITICAL|FATAL|ERROR)\b|^Traceback \(most recent call last\)|^[\w.]*(?:Error|Exception)(?::|$))"
    r"|(?P<warning>\bWARN(?:ING)?\b|\w+Warning:)"
    r"|(?P<info>\bINFO\b)"
    r"|(?P<debug>\bDEBUG\b)"
)
_LEVEL_WITHIN = 200
"""Only this many first characters of a line are searched for its level."""
LEVELS = ("error", "warning", "info", "debug")

_FIRST_COLOUR, _LAST_COLOUR = 30, 37
_FIRST_BRIGHT, _LAST_BRIGHT = 90, 97
_EXTENDED = {"38", "48"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Text in one style. `classes`: CSS classes such as ``ansi-1 ansi-31``."""

    text: str
    classes: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line.

    Attributes:
        offset: first byte in its file; identifies the line in addresses.
        level: one of `LEVELS`, or an empty text.
        overwritten: number of times that a progress bar replaced it.
        cut: number of characters that are not shown.
        is_open: True for an incomplete last line, which may grow.
    """

    offset: int
    parts: tuple[Part, ...]
    level: str = ""
    overwritten: int = 0
    cut: int = 0
    is_open: bool = False

    @property
    def text(self) -> str:
        """The text without styles."""
        return "".join(part.text for part in self.parts)


@dataclass
class _Style:
    codes: dict[str, str] = field(default_factory=dict)

    def apply(self, parameters: str) -> None:
        codes = re.split("[;:]", parameters) if parameters else ["0"]
        while codes:
            code = codes.pop(0) or "0"
            if (
                code in _EXTENDED
            ):  # 256 colours and true colours are shown in the default colour; skip their parameters
                del codes[: 2 if codes[:1] == ["5"] else 4]
                continue
            self._apply_code(int(code) if len(code) < 4 else -1)  # no code has more digits

    def _apply_code(self, code: int) -> None:
        if code == 0:
            self.codes.clear()
        elif code in (1, 2, 3, 4):
            self.codes[f"style-{code}"] = f"ansi-{code}"
        elif code == 22:  # neither bold nor faint
            self.codes.pop("style-1", None)
            self.codes.pop("style-2", None)
        elif code in (23, 24):
            self.codes.pop(f"style-{code - 20}", None)
        elif _FIRST_COLOUR <= code <= _LAST_COLOUR:
            self.codes["colour"] = f"ansi-{code}"
        elif _FIRST_BRIGHT <= code <= _LAST_BRIGHT:
            self.codes["colour"] = f"ansi-{code - 60}"
        elif code == 39:  # the default colour
            self.codes.pop("colour", None)

    @property
    def classes(self) -> str:
        return " ".join(sorted(self.codes.values()))


def lines(content: bytes, offset: int, *, is_end: bool, most: int | None = None) -> list[Line]:
    """Split a range of a file into lines.

    Args:
        content: bytes from the start of a line.
        offset: position of `content` in the file.
        is_end: True if the file ends here, so a last line without newline is open. Otherwise that line was too long.
        most: maximum number of lines; the first are returned.
    """
    found: list[Line] = []
    style, last = _Style(), ""
    for raw in itertools.islice(split(content), most):
        is_open = is_end and not raw.endswith(b"\n")
        line = _line(raw, offset, style, last, is_open=is_open)
        last = line.level if line.text.strip() else ""
        found.append(line)
        offset += len(raw)
    return found


def plain(raw: bytes) -> str:
    """Return the visible text of one line. Searches use it."""
    return _clean(_last_written(raw)[0])


def level_of(text: str, before: str = "") -> str:
    """Guess a line's level from its words. Indented lines continue the level of the line before."""
    if before and text[:1].isspace():
        return before
    found = _LEVEL.search(text[:_LEVEL_WITHIN])
    return (found.lastgroup or "") if found else ""


def split(content: bytes) -> Iterable[bytes]:
    """Yield lines with their newline. A carriage return does not end a line."""
    start = 0
    while start < len(content):
        end = content.find(b"\n", start) + 1 or len(content)
        yield content[start:end]
        start = end


def _line(raw: bytes, offset: int, style: _Style, before: str, *, is_open: bool) -> Line:
    text, overwritten = _last_written(raw)
    cut = max(0, len(text) - MAX_LINE_LENGTH)
    parts = tuple(_parts(text[:MAX_LINE_LENGTH], style))
    level = level_of("".join(part.text for part in parts), before)
    return Line(offset=offset, parts=parts, level=level, overwritten=overwritten, cut=cut, is_open=is_open)


def _last_written(raw: bytes) -> tuple[str, int]:
    """Return the text that remains after carriage returns, and the number of overwritten versions."""
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    if "\r" not in text:
        return text, 0
    written = [part for part in text.split("\r") if part.strip()]
    return (written[-1] if written else ""), max(0, len(written) - 1)


def _parts(text: str, style: _Style) -> Iterable[Part]:
    start = 0
    for found in _ESCAPE.finditer(text):
        if found.start() > start:
            yield Part(text=_CONTROL.sub("", text[start : found.start()]), classes=style.classes)
        if found[1] is not None:
            style.apply(found[1])
        start = found.end()
    if start < len(text):
        yield Part(text=_CONTROL.sub("", text[start:]), classes=style.classes)


def _clean(text: str) -> str:
    return _CONTROL.sub("", _ESCAPE.sub("", text))
