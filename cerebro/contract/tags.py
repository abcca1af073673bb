"""Tags of experiments and models: keys, values and limits."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

NOTE = "note"
"""Key of the tag with free text."""

MAX_TAGS = 100
"""Maximum number of tags of an experiment or a model."""

TagKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]([A-Za-z0-9_./ -]{0,98}[A-Za-z0-9_])?$")]
"""Letters, digits, ``_``, ``.``, ``/``, ``-`` and inner blanks, at most 100 characters."""

TagValue = Annotated[str, StringConstraints(max_length=5000)]


def changed_tags(tags: dict[str, str], changes: dict[str, str | None]) -> dict[str, str] | None:
    """Return the tags after a change; `None` if they would be more than `MAX_TAGS`."""
    found = {key: value for key, value in {**tags, **changes}.items() if value is not None}
    return found if len(found) <= MAX_TAGS else None


def tags_text(tags: dict[str, str], *, has_note: bool = False) -> str:
    """Return the tags in one line, with or without the note."""
    shown = (item for item in tags.items() if has_note or item[0] != NOTE)
    return ", ".join(f"{key}={value}" if value else key for key, value in shown)
