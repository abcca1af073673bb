"""Markdown tables of the generated pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table.

    Example:
        >>> print(table(("name", "meaning"), [("`a`", "x | y")]))
        | name | meaning |
        |---|---|
        | `a` | x \\| y |
        <BLANKLINE>
    """
    lines = [head, ["---"] * len(head), *([_cell(text) for text in row] for row in rows)]
    return (
        "\n".join(
            f"|{'|'.join(line)}|" if number == 1 else f"| {' | '.join(line)} |"
            for number, line in enumerate(lines)
        )
        + "\n"
    )


def code(text: str) -> str:
    """Return text as inline code; empty text stays empty."""
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
