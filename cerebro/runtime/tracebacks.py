"""Format exceptions of user code as text, with each frame once.

The child's task loop, ETL, trials and `named` use `line_of` and `text_of` for failures that users read. Frames of the
platform are left out where user code has frames. An exception may be hostile by accident: its text may have 100 MB, or
raise. Nothing here raises, and texts are cut before they are joined.
"""

from __future__ import annotations

import sysconfig
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary, TracebackException

from cerebro.contract.tasks.failures import MAX_MESSAGE, MAX_TRACEBACK
from cerebro.contract.texts import cleaned
from cerebro.errors import CerebroError

_ROOT = Path(__file__).resolve().parents[2]
_PLATFORM = tuple(f"{_ROOT / name}/" for name in ("cerebro", "etl_worker", "model_hopper", "trial_runner"))
"""Folders of the platform's code that calls user code."""
_INSTALLED = (f"{sysconfig.get_path('stdlib')}/", "<frozen ")
_PACKAGES = ("/site-packages/", "/dist-packages/")
_LINKS, _GROUPED = 10, 5
"""Maximum exceptions shown of a chain (the last ones), and of a group (the first ones)."""
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def line_of(error: BaseException) -> str:
    """Return an exception's message; for exceptions not from Cerebro with the type in front."""
    text = _said(error)
    if isinstance(error, CerebroError):
        return cleaned(text, MAX_MESSAGE)
    name = name_of(error)
    return cleaned(f"{name}: {text}" if text else name, MAX_MESSAGE)


def text_of(error: BaseException) -> str:
    """Return the traceback of user code and its libraries, with the chained exceptions.

    Without a frame of user code: an empty text for Cerebro's errors, whose message is complete, and all
    frames for others.
    """
    if isinstance(error, CerebroError) and error.user_traceback:
        return cleaned(error.user_traceback, MAX_TRACEBACK)
    links = list(_chain(error))
    is_users = any(_is_users(frame) for link, _ in links for frame in _frames(link))
    if isinstance(error, CerebroError) and not is_users:
        return ""
    return cleaned("".join(_formatted_links(links, all_frames=not is_users)), MAX_TRACEBACK)


def name_of(error: BaseException) -> str:
    """Return the name of an exception's type."""
    try:
        return str(type(error).__name__)
    except BaseException:  # noqa: BLE001 - a metaclass may make it, and fail
        return "an exception whose type has no name"


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as problem:  # noqa: BLE001 - report the first error, not this one
        return f"(its text cannot be had: __str__ raised {name_of(problem)})"


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Return the newest `_LINKS` exceptions that led to `error`, oldest first, each with the text before the next."""
    links: list[tuple[BaseException, str]] = []
    shown_ids: set[int] = set()
    link: BaseException | None = error
    between = ""
    while link is not None and id(link) not in shown_ids and len(links) < _LINKS:
        links.append((link, between))
        shown_ids.add(id(link))
        if link.__cause__ is not None or link.__suppress_context__:
            link, between = link.__cause__, _CAUSE
        else:
            link, between = link.__context__, _CONTEXT
    return reversed(links)


def _formatted_links(links: list[tuple[BaseException, str]], *, all_frames: bool) -> Iterator[str]:
    shown = []
    for link, between in links:
        frames = [frame for frame in _frames(link) if all_frames or not frame.filename.startswith(_PLATFORM)]
        # A Cerebro error without a frame of the user only repeats the failure's message.
        if frames or not isinstance(link, CerebroError):
            shown.append((link, frames, between))
    for number, (link, frames, between) in enumerate(shown, 1):
        if frames:
            yield "Traceback (most recent call last):\n"
            yield from traceback.StackSummary.from_list(frames).format()
        yield f"{_ending(link)}\n"
        yield between if number < len(shown) else ""


def _frames(error: BaseException) -> list[FrameSummary]:
    try:
        return list(traceback.extract_tb(error.__traceback__))
    except Exception:  # noqa: BLE001 - source files may be of any kind
        return []


def is_platforms(error: BaseException) -> bool:
    """True if the platform's own code raised an exception, or called the library that did."""
    for frame in reversed(_frames(error)):
        if frame.filename.startswith(_PLATFORM):
            return True
        if _is_users(frame):
            return False
    return False


def _is_users(frame: FrameSummary) -> bool:
    name = frame.filename
    return not name.startswith(_PLATFORM + _INSTALLED) and not any(part in name for part in _PACKAGES)


def _ending(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        try:
            return "".join(TracebackException(type(error), error, None).format_exception_only()).rstrip()
        except Exception:  # noqa: BLE001 - its fields may hold anything
            return line_of(error)
    text = line_of(error)
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        text = "\n".join(
            [text, *(cleaned(note, MAX_MESSAGE) for note in notes[:_LINKS] if isinstance(note, str))]
        )
    if isinstance(error, BaseExceptionGroup):
        parts = [text_of(part).rstrip() or line_of(part) for part in error.exceptions[:_GROUPED]]
        text = "\n".join([text, *(textwrap.indent(part, "  | ") for part in parts)])
    return text
