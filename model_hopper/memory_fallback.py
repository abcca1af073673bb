"""Repetition of an evaluation with less memory after a lack of memory.

`model_hopper.handler` uses it for `valid`, `test` and `predict`, because a model that trains by a parallel plan may not
fit one device. The batch size is divided by 4, down to one row. If the device has less memory than the host, the last
try is on the host with the first batch size. Training never falls back. Metrics don't depend on the batch size, unless
user code computes over the rows of a batch.
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
from cerebro.worker.child.memory_errors import whose_memory

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_BATCH_DIVISOR = 4
"""After a lack of memory, divide the batch size by this number."""


class EvaluationSetting(NamedTuple):
    """Device and batch size of an evaluation.

    Attributes:
        is_on_host: True if it uses the host's memory and not the device's share.
    """

    device: torch.device
    batch_size: int
    is_on_host: bool = False


def fallback_settings(device: torch.device, batch_size: int, *, is_limited: bool) -> list[EvaluationSetting]:
    """Return the settings to try, in order.

    Args:
        device: the worker's device.
        batch_size: rows per batch of the first setting.
        is_limited: True if the device is a share of cores with less memory than the host.
    """
    sizes = [batch_size]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // _BATCH_DIVISOR))
    on_device = [EvaluationSetting(device, size) for size in sizes]
    if device.type == "cpu" and not is_limited:
        return on_device
    return [*on_device, EvaluationSetting(torch.device("cpu"), batch_size, is_on_host=True)]


def evaluate_with_fallback(
    settings: list[EvaluationSetting], evaluate: Callable[[EvaluationSetting], _T]
) -> _T:
    """Call `evaluate` with each setting until the memory suffices.

    Returns:
        The result of `evaluate`.

    Raises:
        Exception: an error of `evaluate` other than a lack of memory. If no setting suffices, or user code fails on the
            host, the first lack of memory with a note about the last error.
    """
    first: Exception | None = None
    for setting in settings:
        try:
            return evaluate(setting)
        except Exception as error:
            is_lack_of_memory = whose_memory(error) is not None
            if not is_lack_of_memory and (isinstance(error, CerebroError) or not setting.is_on_host):
                raise
            if setting is settings[-1]:
                if first is None:
                    raise
                where = "on the host" if setting.is_on_host else f"in batches of {setting.batch_size} rows"
                first.add_note(f"The evaluation was repeated {where} and failed again:\n{text_of(error)}")
                raise first from None
            message = "memory ran out on %s in batches of %d rows; the evaluation is repeated with less: %s"
            log.warning(message, setting.device, setting.batch_size, line_of(error))
            _clear_frames(error)
            first = first or error
        # Outside `except`, where the error would still hold the tensors of this setting.
        gc.collect()
        torch.cuda.empty_cache()
    raise AssertionError("there is no setting to try")


def _clear_frames(error: BaseException) -> None:
    """Clear the frames of the error and its causes, which hold tensors (pytorch#27600)."""
    link: BaseException | None = error
    visited: set[int] = set()
    while link is not None and id(link) not in visited:
        visited.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
