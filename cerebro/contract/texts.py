"""Clean and shorten texts from user code, and find similar names.

The contract cleans texts on entry. Otherwise a worker would end because it cannot report an error: a lone surrogate
cannot be encoded, and no channel carries a message of 100 MB.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of control and invisible characters."""
_LINE = 300
_LONG = 20
"""Digits of a number that no name has; int() refuses thousands."""
_ORDINARY = frozenset("\n\t\u200c\u200d\u00ad\ufeff")
"""Characters of these categories that ordinary text contains."""


def cleaned(text: str, limit: int) -> str:
    """Replace characters that cannot be stored or shown, and cut the middle beyond `limit` characters.

    Idempotent.
    """
    # Cut first, because escaping a long text is slow, and again, because escapes are longer.
    return _cut(_escaped(_cut(text, limit)), limit)


def first_line(text: str) -> str:
    """Return the first line, shortened to 300 characters."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _LINE else f"{line[: _LINE - 1]}\u2026"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``: did you mean X?`` for the most similar known name, or an empty text.

    A name with another number, such as ``fit-9`` for ``fit-1``, is no misspelling.
    """
    words, numbers = _parts(name)
    candidates = [each for each in known if _parts(each)[0] != words or _parts(each)[1] == numbers]
    found = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    return f": did you mean {found[0]}?" if found else ""


def _parts(name: str) -> tuple[list[str], list[int]]:
    """Return the words and the numbers of a name."""
    parts = re.split(r"([0-9]+)", name)
    return parts[::2], [int(number) for number in parts[1::2] if len(number) < _LONG]


def _escaped(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if _is_hidden(c) else c for c in text.replace("\r\n", "\n"))


def _is_hidden(character: str) -> bool:
    return character not in _ORDINARY and unicodedata.category(character) in _HIDDEN


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    mark = f"\n[... {len(text) - limit:,} characters or more are left out ...]\n"
    budget = max(0, limit - len(mark))
    tail = budget // 2
    return text[: budget - tail] + mark[:limit] + (text[-tail:] if tail else "")
