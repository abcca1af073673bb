"""A page as its reader sees it."""

from __future__ import annotations

import html
import re


def text_of(page: str) -> str:
    """What a reader sees, with single blanks."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
