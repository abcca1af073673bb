"""Extract the visible text of a page."""

from __future__ import annotations

import html
import re


def text_of(page: str) -> str:
    """Return the visible text with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
