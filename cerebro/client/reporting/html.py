"""HTML from plain values: whatever a user named anything, it is text in here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from cerebro.figures.frame import number


class Html(str):
    """Markup: its text was escaped when it was made."""

    __slots__ = ()


Value = str | int | float | None | Html


def text(words: object) -> Html:
    """Plain text."""
    return Html(escape(str(words)))


def element(name: str, *inside: Html, **attributes: str) -> Html:
    """An element; of an attribute's name, underscores are dashes and one at the end is none."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items()
    )
    return Html(f"<{name}{given}>{''.join(inside)}</{name}>")


def joined(parts: Iterable[Html]) -> Html:
    """One after another."""
    return Html("\n".join(parts))


def paragraph(words: str, **attributes: str) -> Html:
    """Plain text as a paragraph."""
    return element("p", text(words), **attributes)


def section(heading: str, *inside: Html, id_: str = "") -> Html:
    """A part of the document; empty if there is nothing in it."""
    shown = [part for part in inside if part]
    if not shown:
        return Html("")
    return element("section", element("h2", text(heading)), *shown, **({"id": id_} if id_ else {}))


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Value]], *, note: str = "") -> Html:
    """A table whose first column names its rows; empty without rows."""
    body = [
        element("tr", *(_cell(value, is_head=place == 0) for place, value in enumerate(row))) for row in rows
    ]
    if not body:
        return Html("")
    head = element("tr", *(element("th", text(column), scope="col") for column in columns))
    inside = (
        element("caption", text(caption + (f" ({note})" if note else ""))),
        element("thead", head),
        element("tbody", *body),
    )
    # A wide table scrolls by itself; by keyboard as well, hence the tab stop.
    return element(
        "div", element("table", *inside), class_="wide", tabindex="0", role="region", aria_label=caption
    )


def facts(pairs: Mapping[str, Value]) -> Html:
    """Names and what they stand for; those without a value are left out."""
    shown = [(name, value) for name, value in pairs.items() if value not in (None, "")]
    inside = [Html(element("dt", text(name)) + element("dd", _shown(value))) for name, value in shown]
    return element("dl", *inside) if inside else Html("")


def code(words: str) -> Html:
    """Text as it is typed."""
    return element("pre", element("code", text(words)), tabindex="0")


def moment(seconds: float) -> str:
    """A time as ISO 8601; empty if it is not known."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if seconds > 0 else ""


def _cell(value: Value, *, is_head: bool) -> Html:
    if is_head:
        return element("th", _shown(value), scope="row")
    kind = {"class_": "number"} if isinstance(value, int | float) else {}
    return element("td", _shown(value), **kind)


def _shown(value: Value) -> Html:
    if isinstance(value, float):
        return text(number(value))
    if isinstance(value, int):
        return text(f"{value:,}")
    if value is None:
        return Html("")
    return value if isinstance(value, Html) else text(value)
