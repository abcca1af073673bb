"""Where an evaluation has memory enough: on the device, there in smaller batches, at last on the host.

A model may be trained by a way because it does not fit the device otherwise. What is measured of it does not depend on
how many rows are read at once, unless user code computes over the rows of a batch.
"""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch

from cerebro.errors import CerebroError
from cerebro.runtime.tracebacks import line_of, text_of
from cerebro.worker.agent.memory_errors import whose_memory

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_LESS = 4
"""Where memory runs out, a batch has this part of the rows the next time."""


class Reach(NamedTuple):
    """Where to evaluate, in batches of how many rows.

    Attributes:
        is_on_host: in the memory of the host, where the device has less.
    """

    device: torch.device
    batch_size: int
    is_on_host: bool = False


def reaches(device: torch.device, batch_size: int, *, is_limited: bool) -> list[Reach]:
    """What to try, one after another, until there is memory enough.

    Args:
        is_limited: the device is a share of cores, and has less memory than the host.
    """
    sizes = [batch_size]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // _LESS))
    found = [Reach(device, size) for size in sizes]
    if device.type == "cpu" and not is_limited:
        return found
    return [*found, Reach(torch.device("cpu"), batch_size, is_on_host=True)]


def in_reach(tried: list[Reach], evaluate: Callable[[Reach], _T]) -> _T:
    """What `evaluate` returns where there is memory enough for it.

    Raises:
        Exception: what it raises for another reason; where memory never was enough, or user code cannot be done on the
            host, its first lack of memory, which tells of the last error as well.
    """
    first: Exception | None = None
    for reach in tried:
        try:
            return evaluate(reach)
        except Exception as error:
            is_of_memory = whose_memory(error) is not None
            if not is_of_memory and (isinstance(error, CerebroError) or not reach.is_on_host):
                raise
            if reach is tried[-1]:
                if first is None:
                    raise
                where = "on the host" if reach.is_on_host else f"in batches of {reach.batch_size} rows"
                first.add_note(f"It was done once more {where}, and failed there, too:\n{text_of(error)}")
                raise first from None
            what = "memory ran out on %s in batches of %d rows, so it is done once more with less: %s"
            log.warning(what, reach.device, reach.batch_size, line_of(error))
            _let_go(error)
            first = first or error
        # Not within `except`, where the error still has the tensors of this attempt.
        gc.collect()
        torch.cuda.empty_cache()
    raise AssertionError("there is somewhere to evaluate")


def _let_go(error: BaseException) -> None:
    """An error keeps the tensors of its frames (pytorch#27600), and those of the errors that led to it; not here."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
