"""Extension of the docstring reader: literal blocks, marked by two colons, become Markdown code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

_LITERAL = re.compile(r"::\n\n((?:(?: {4}.*)?\n)*(?: {4}.*)(?:\n|$))")


class LiteralBlocks(griffe.Extension):
    """Rewrite `text::` and the indented lines after it."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = _LITERAL.sub(_fenced, obj.docstring.value + "\n").rstrip()


def _fenced(match: re.Match[str]) -> str:
    lines = [line.removeprefix("    ") for line in match[1].rstrip().splitlines()]
    return ":\n\n" + "\n".join(["```python", *lines, "```"]) + "\n"
